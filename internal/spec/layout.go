package spec

// layout holds the numbers from which the shapes of a pass follow.
type layout struct {
	extents  [Dim2 + 1]int64
	types    [OfZeros + 1]Type
	features Feature
	inOut    bool
	packing  *Packing // nil for plain weights
}

func (c *Config) layout(tokens, rows int, gradients Type) layout {
	l := layout{
		types:    [...]Type{OfLayer: c.Type, OfRouter: c.Type, OfLogits: c.Logits, AlwaysF32: F32, AlwaysI32: I32, OfGradient: gradients, OfCodes: c.Type, OfScales: U8, OfZeros: U8},
		features: c.features(), inOut: c.InOut, packing: c.packing(),
	}
	if l.packing != nil {
		l.types[OfCodes], l.types[OfScales] = U8, l.packing.Scale.Type()
	}
	for d, n := range [...]int{DimT: tokens, DimR: rows, DimK: c.TopK, DimE: c.NumExperts, DimD: c.Hidden, DimN: c.Intermediate,
		DimW1: c.HWidth(), DimH: c.HWidth(), DimShared: c.SharedWidth(), DimSharedH: c.HParts() * c.SharedWidth(), DimRank: c.LoRARank, DimPaddedRank: PaddedRank(*c), DimFactors: max(1, c.LoRAAdapters) * c.NumExperts, DimAdapters: c.LoRAAdapters, Dim1: 1, Dim2: 2} {
		l.extents[d] = int64(n)
	}
	if c.GateUp == Apart {
		l.extents[DimW1] = l.extents[DimN]
	}
	if c.RouterF32 {
		l.types[OfRouter] = F32
	}
	return l
}

// isFactorOfTable reports whether the tensor has the factors of a table of adapters.
func (l *layout) isFactorOfTable(r *TensorRow) bool {
	return r.Needs&HasAdapter != 0 && l.features&HasTable != 0
}

// shape returns the tensor's shape, or the zero Shape if the layer does not have it.
func (l *layout) shape(r *TensorRow) (s Shape) {
	if r.Needs&^l.features != 0 {
		return s
	}
	s.Type = l.types[r.Type]
	for s.Rank < len(r.Dims) && r.Dims[s.Rank] != 0 {
		s.Dims[s.Rank] = l.extents[r.Dims[s.Rank]]
		s.Rank++
	}
	if r.Ordered && l.inOut && !l.isFactorOfTable(r) {
		s.Dims[1], s.Dims[2] = s.Dims[2], s.Dims[1]
	}
	switch {
	case l.packing == nil:
	case r.Type == OfCodes:
		s.Dims[2] = l.packing.CodeBytes(s.Dims[2])
	case r.Type == OfScales || r.Type == OfZeros:
		s.Dims[1], s.Dims[2] = l.packing.Blocks(s.Dims[1], s.Dims[2])
	}
	return s
}

// Shapes returns the shapes of the tensors of a forward pass over a number of tokens.
func (c Config) Shapes(tokens int) (s Shapes) {
	l := c.layout(tokens, tokens*c.TopK, c.Type)
	for _, id := range forward {
		*s.at(id) = l.shape(Row(id))
	}
	return s
}

// Of returns the shape of a tensor of the forward pass, or the zero Shape for any other tensor.
func (s *Shapes) Of(id TensorID) Shape {
	if at := s.at(id); at != nil {
		return *at
	}
	return Shape{}
}

// Gradients returns the shapes of the tensors that a backward pass adds. weights is the element
// type of the gradients of weights.
func (c Config) Gradients(tokens int, weights Type) (s GradientShapes) {
	l := c.layout(tokens, tokens*c.TopK, weights)
	for _, id := range backward {
		*s.at(id) = l.shape(Row(id))
	}
	return s
}

// Of returns the shape of a tensor that the backward pass adds, or the zero Shape for any other
// tensor.
func (s *GradientShapes) Of(id TensorID) Shape {
	if at := s.at(id); at != nil {
		return *at
	}
	return Shape{}
}

// ListShapes returns the shapes of a forward pass whose routing is a list of L pairs of a token
// and an expert, where L is entries. It is like [Config.Shapes], but Scores and ExpertIDs are [L], and H, A
// and Y have L rows. The list's Tokens have the shape of ExpertIDs, and DScores that of Scores.
func (c Config) ListShapes(tokens, entries int) Shapes {
	s, l := c.Shapes(tokens), c.layout(tokens, entries, c.Type)
	for _, id := range []TensorID{TensorH, TensorLoraU, TensorA, TensorY} {
		*s.at(id) = l.shape(Row(id))
	}
	s.Scores = Shape{Type: F32, Rank: 1, Dims: [3]int64{int64(entries)}}
	s.ExpertIDs = Shape{Type: I32, Rank: 1, Dims: [3]int64{int64(entries)}}
	return s
}
