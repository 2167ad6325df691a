package spec

// GradientShapes are the tensors that a backward pass reads or writes beside
// those of the forward pass, R = T·K. A tensor that the configuration does not
// have has the zero Shape.
type GradientShapes struct {
	// DO [T, d] is the gradient of the output, DX [T, d] that of the input, in
	// the layer's Type.
	DO, DX Shape
	// DRouter to DB2 are the gradients of the experts' and the router's weights
	// and biases, laid out as these are, in the type asked for, BF16, F16 or
	// FP32. DRouterBias and DExpertScale are [E] f32 always.
	DRouter                   Shape
	DW1, DW3, DW2             Shape
	DB1, DB3, DB2             Shape
	DRouterBias, DExpertScale Shape
	// DSharedW1 to DSharedGate are the gradients of the shared experts' weights.
	DSharedW1, DSharedW3, DSharedW2, DSharedGate Shape
	// DScores [T, K] f32 is the gradient of the scores.
	DScores Shape
	// DLogits [T, E] f32 is what other losses add to the logits' gradients.
	DLogits Shape
	// RouterLosses [2] f32 are the balance loss and the z-loss.
	RouterLosses Shape
	// DH [R, 2n] or [R, n] is the gradient of H times what multiplies the row,
	// gate then up; ScaledA [R, n] the activation times its row's score; DXRows
	// [R, d] the gradient of each row's input. All in the layer's Type, rows
	// grouped by expert, in the workspace, where neurons are rounded up to whole tiles
	// of 64.
	DH, ScaledA, DXRows Shape
	// SharedDH, SharedScaledA and SharedDX are the same of the shared experts,
	// a row a token.
	SharedDH, SharedScaledA, SharedDX Shape
}

// Gradients gives the tensors of a backward call with so many tokens, whose
// weight gradients are all of the given type.
func (c Config) Gradients(tokens int, weights Type) GradientShapes {
	s := c.Shapes(tokens)
	as := func(w Shape) Shape {
		if !w.IsZero() {
			w.Type = weights
		}
		return w
	}
	return GradientShapes{
		DO: s.O, DX: s.X,
		DRouter: as(s.Router),
		DW1:     as(s.W1), DW3: as(s.W3), DW2: as(s.W2),
		DB1: as(s.B1), DB3: as(s.B3), DB2: as(s.B2),
		DRouterBias: s.RouterBias, DExpertScale: s.ExpertScale,
		DSharedW1: as(s.SharedW1), DSharedW3: as(s.SharedW3), DSharedW2: as(s.SharedW2), DSharedGate: as(s.SharedGate),
		DScores:      s.Scores,
		DLogits:      shape(F32, tokens, c.NumExperts),
		RouterLosses: shape(F32, 2),
		DH:           s.H, ScaledA: s.A, DXRows: s.Y,
		SharedDH: s.SharedH, SharedScaledA: s.SharedA, SharedDX: s.SharedY,
	}
}
