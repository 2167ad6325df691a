package spec

// Saved is what one implementation keeps from forward to backward.
type Saved struct {
	// Method is the implementation's name.
	Method string
	// Activations counts X, pre-activations and whatever else of the size of
	// activations is kept. Weights and the layer's output are not in it.
	Activations int64
	// Metadata counts scores and indices.
	Metadata int64
}

// Bytes is all that is kept.
func (s Saved) Bytes() int64 { return s.Activations + s.Metadata }

// metadataBytes are the scores, the experts and two index arrays of T·K
// entries, and the experts' offsets: what any of the methods needs.
func (c Config) metadataBytes(tokens int) int64 {
	return 4*4*int64(tokens)*int64(c.TopK) + 4*int64(c.Experts+1)
}

// Saved is exactly what this library keeps from forward to backward, in bytes:
// X (which the caller has anyway), H, scores and experts. That is 2Td + 4TKn
// bytes, which do not grow when experts get finer at a constant nK, and 8TK
// bytes of metadata: the order of the rows is made anew from the experts.
func (c Config) Saved(tokens int) Saved {
	s, shapes := c.SavedByMethod(tokens)[0], c.Shapes(tokens)
	s.Metadata = shapes.Scores.Bytes() + shapes.Experts.Bytes()
	return s
}

// SavedByMethod lists what is kept from forward to backward by SonicMoE, whose
// method this library follows, and by others, in bytes.
//
// The figures of others are formulas that meet the measurements published in
// arXiv 2512.14080, figure 13, within 2 % (Megatron at 30B n=256 needs 2 GiB
// more than its formula), but for the last: "torch grouped" counts what
// autograd keeps of an eager layer around torch._grouped_mm (gathered X, H,
// silu(gate), A, Y). Each gets the same metadata.
func (c Config) SavedByMethod(tokens int) []Saved {
	t, k := int64(tokens), int64(c.TopK)
	x := 2 * t * int64(c.Hidden)              // X, bf16
	rowN := 2 * t * k * int64(c.Intermediate) // one [R, n] tensor
	rowD := 2 * t * k * int64(c.Hidden)       // one [R, d] tensor
	list := []Saved{
		{Method: "SonicMoE", Activations: x + 2*rowN},
		{Method: "MoMoE", Activations: x + 2*rowN + rowD},
		{Method: "DeepGEMM", Activations: x + 2*rowN + rowD},
		{Method: "ScatterMoE", Activations: x + 3*rowN + rowD},
		{Method: "Megatron", Activations: x + 3*rowN + 2*rowD},
		{Method: "torch grouped", Activations: x + 4*rowN + 2*rowD},
	}
	for i := range list {
		list[i].Metadata = c.metadataBytes(tokens)
	}
	return list
}
