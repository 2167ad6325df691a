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
	return 4*4*int64(tokens)*int64(c.TopK) + 4*int64(c.NumExperts+1)
}

// Saved is exactly what this library keeps from forward to backward, in bytes:
// X (which the caller has anyway), H, scores and experts. That is 2Td + 4TKn
// bytes, or 2Td + 2TKn without a gate, which do not grow when experts get finer
// at a constant nK, and 8TK bytes of metadata: the order of the rows is made
// again from the experts, and the score of the shared experts' gate from X. Shared
// experts keep their H, a router whose scores don't tell their gradient its logits.
func (c Config) Saved(tokens int) Saved {
	shapes := c.Shapes(tokens)
	s := Saved{
		Method:      "SonicMoE",
		Activations: shapes.X.Bytes() + shapes.H.Bytes() + shapes.SharedH.Bytes(),
		Metadata:    shapes.Scores.Bytes() + shapes.ExpertIDs.Bytes(),
	}
	if c.SavesLogits() {
		s.Metadata += shapes.Logits.Bytes()
	}
	return s
}

// SavedByMethod lists what is kept from forward to backward by SonicMoE, whose
// method this library follows, and by others, in bytes, without shared experts.
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
	rowH := 2 * t * k * int64(c.HWidth())     // H
	list := []Saved{
		{Method: "SonicMoE", Activations: x + rowH},
		{Method: "MoMoE", Activations: x + rowH + rowD},
		{Method: "DeepGEMM", Activations: x + rowH + rowD},
		{Method: "ScatterMoE", Activations: x + rowH + rowN + rowD},
		{Method: "Megatron", Activations: x + rowH + rowN + 2*rowD},
		{Method: "torch grouped", Activations: x + rowH + 2*rowN + 2*rowD},
	}
	for i := range list {
		list[i].Metadata = c.metadataBytes(tokens)
	}
	return list
}
