package spec

// GradientShapes are the tensors that a backward pass reads or writes beside
// those of the forward pass, R = T·K.
type GradientShapes struct {
	// DO [T, d] is the gradient of the output, DX [T, d] that of the input, bf16.
	DO, DX Shape
	// DRouter [E, d], DW1 [E, 2n, d] and DW2 [E, d, n] are the weights'
	// gradients, laid out as the weights are, bf16 or FP32.
	DRouter, DW1, DW2 Shape
	// DScores [T, K] f32 is the gradient of the scores.
	DScores Shape
	// DLogits [T, E] f32 is what other losses add to the logits' gradients.
	DLogits Shape
	// DH [R, 2n] is the gradient of H, gate then up; ScaledA [R, n] the
	// activation times its row's score; DXRows [R, d] the gradient of each
	// row's input. All bf16, rows grouped by expert, in the workspace.
	DH, ScaledA, DXRows Shape
}

// Gradients gives the tensors of a backward call with so many tokens, whose
// weight gradients are all of the given type, BF16 or F32.
func (c Config) Gradients(tokens int, weights Type) GradientShapes {
	s := c.Shapes(tokens)
	as := func(w Shape) Shape {
		w.Type = weights
		return w
	}
	return GradientShapes{
		DO: s.O, DX: s.X,
		DRouter: as(s.Router), DW1: as(s.W1), DW2: as(s.W2),
		DScores: s.Scores,
		DLogits: shape(F32, tokens, c.Experts),
		DH:      s.H, ScaledA: s.A, DXRows: s.Y,
	}
}
