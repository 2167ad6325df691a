package spec

// Saved is the memory that an implementation keeps from the forward to the backward pass.
type Saved struct {
	// Method is the implementation's name.
	Method string
	// Activations is the bytes of X, the pre-activations and other activations. It does not
	// count weights and the layer's output.
	Activations int64
	// Metadata is the bytes of scores and indices.
	Metadata int64
}

// Bytes returns the sum of activations and metadata.
func (s Saved) Bytes() int64 { return s.Activations + s.Metadata }

// metadataBytes returns the bytes of metadata that every method needs: scores, expert ids and
// two index arrays of T·K elements each, and the experts' offsets.
func (c Config) metadataBytes(tokens int) int64 {
	return 4*4*int64(tokens)*int64(c.TopK) + 4*int64(c.NumExperts+1)
}

// SavedBytes returns the bytes that stay from the forward to the backward pass: X (which the
// caller has anyway), H, scores and expert ids. X and H are 2Td + 4TKn bytes, or 2Td + 2TKn
// without a gate. This does not grow when experts become narrower and a token uses more of them
// (nK constant). Scores and expert ids are 8TK bytes. Layers with shared experts also keep
// SharedH, layers with SavesLogits the logits, and layers with LoRARank LoraU. Backward recomputes the order of the rows
// from the expert ids, and the score of the shared experts' gate from X.
func (c Config) SavedBytes(tokens int) int64 {
	s := c.Shapes(tokens)
	saved := s.X.Bytes() + s.H.Bytes() + s.SharedH.Bytes() + s.LoraU.Bytes() + s.Scores.Bytes() + s.ExpertIDs.Bytes()
	if c.SavesLogits() {
		saved += s.Logits.Bytes()
	}
	return saved
}

// SavedByMethod returns the bytes that SonicMoE, whose method this library follows, and other
// implementations keep from the forward to the backward pass. Shared experts are not counted.
//
// The formulas of the other implementations agree with the measurements in arXiv 2512.14080,
// figure 13, within 2 % (Megatron at 30B n=256 needs 2 GiB more). "torch grouped" is not
// measured there. Its formula counts what autograd keeps of an eager layer around
// torch._grouped_mm: gathered X, H, silu(gate), A and Y. All methods have the same metadata.
func SavedByMethod(c Config, tokens int) []Saved {
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
