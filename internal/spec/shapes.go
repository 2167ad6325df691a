package spec

// Shapes are the tensors of one forward call, R = T·K. A tensor that the
// configuration does not have has the zero Shape.
type Shapes struct {
	// X is the input [T, d] and O the output [T, d], of the layer's Type, as are
	// all tensors that no other type is said of.
	X, O Shape
	// Router [E, d] is of the layer's Type, or f32 with RouterF32. RouterBias,
	// SelectionBias and ExpertScale are [E] f32.
	Router, RouterBias, SelectionBias, ExpertScale Shape
	// W1 [E, 2n, d], or [E, n, d] without a gate or with GateUp Apart, whose other
	// half is W3 [E, n, d]; W2 [E, d, n]. With InOut the last two dimensions
	// change places.
	W1, W3, W2 Shape
	// B1 [E, 2n] or [E, n], ordered as the rows of W1, and with GateUp Apart B3
	// [E, n]; B2 [E, d].
	B1, B3, B2 Shape
	// SharedW1 [sn, d] is the shared experts' gate, SharedW3 [sn, d] their up, and
	// SharedW2 [d, sn], sn = SharedWidth, whatever GateUp and WeightOrder say of
	// the others. Without a gate SharedW1 is alone.
	SharedW1, SharedW3, SharedW2 Shape
	// SharedGate [d] is the weight wg of the shared experts' own gate.
	SharedGate Shape
	// Logits [T, E] are in the Config's format.
	Logits Shape
	// Scores [T, K] f32 and ExpertIDs [T, K] i32 are the routing, best first.
	Scores, ExpertIDs Shape
	// H [R, 2n], or [R, n] without a gate, is the pre-activation, gate then up;
	// A [R, n] the activation, whose rows in the workspace are rounded up to whole
	// tiles of 64; Y [R, d] the experts' output. Rows are grouped by expert.
	H, A, Y Shape
	// SharedH [T, 2sn] or [T, sn], SharedA [T, sn] and SharedY [T, d] are the
	// same of the shared experts, a row a token.
	SharedH, SharedA, SharedY Shape
	// SharedScore [T] f32 is sigmoid(x·wg).
	SharedScore Shape
}

// ListShapes are the tensors of a call whose experts come as a list of so many
// entries, each a token and one of its experts: what of Shapes and GradientShapes
// has another extent then.
type ListShapes struct {
	// Tokens and ExpertIDs [L] i32 and Scores [L] f32 are the list.
	Tokens, ExpertIDs, Scores Shape
	// H, A and Y are as in Shapes, and DH, ScaledA, DXRows and DScores as in
	// GradientShapes, with L rows.
	H, A, Y                      Shape
	DH, ScaledA, DXRows, DScores Shape
}

// ListShapes gives the tensors of a list of so many entries.
func (c Config) ListShapes(entries int) ListShapes {
	c.TopK = 1 // as many tokens with one expert each have the same rows
	s, g := c.Shapes(entries), c.Gradients(entries, F32)
	return ListShapes{
		Tokens: shape(I32, entries), ExpertIDs: shape(I32, entries), Scores: shape(F32, entries),
		H: s.H, A: s.A, Y: s.Y,
		DH: g.DH, ScaledA: g.ScaledA, DXRows: g.DXRows, DScores: shape(F32, entries),
	}
}

// Shapes gives the tensors of a call with so many tokens.
func (c Config) Shapes(tokens int) Shapes {
	d, e, k := c.Hidden, c.NumExperts, c.TopK
	s := Shapes{
		X:         shape(c.Type, tokens, d),
		O:         shape(c.Type, tokens, d),
		Router:    shape(c.Type, e, d),
		Logits:    shape(c.Logits.Type(), tokens, e),
		Scores:    shape(F32, tokens, k),
		ExpertIDs: shape(I32, tokens, k),
		H:         shape(c.Type, tokens*k, c.HWidth()),
		A:         shape(c.Type, tokens*k, c.Intermediate),
		Y:         shape(c.Type, tokens*k, d),
	}
	if c.RouterF32 {
		s.Router.Type = F32
	}
	for _, v := range []struct {
		has bool
		of  *Shape
	}{{c.RouterBias, &s.RouterBias}, {c.SelectionBias, &s.SelectionBias}, {c.ExpertScale, &s.ExpertScale}} {
		if v.has {
			*v.of = shape(F32, e)
		}
	}
	c.expertShapes(&s)
	c.sharedShapes(&s, tokens)
	return s
}

// expertShapes fills in the weights of the experts.
func (c Config) expertShapes(s *Shapes) {
	d, n, e := c.Hidden, c.Intermediate, c.NumExperts
	weight := func(out, in int) Shape {
		if c.WeightOrder == InOut {
			out, in = in, out
		}
		return shape(c.Type, e, out, in)
	}
	rows := c.HWidth()
	if c.GateUp == Apart {
		rows = n
		s.W3 = weight(n, d)
	}
	s.W1, s.W2 = weight(rows, d), weight(d, n)
	if c.Bias {
		s.B1, s.B2 = shape(c.Type, e, rows), shape(c.Type, e, d)
		if c.GateUp == Apart {
			s.B3 = shape(c.Type, e, n)
		}
	}
}

// sharedShapes fills in the tensors of the shared experts.
func (c Config) sharedShapes(s *Shapes, tokens int) {
	d, n := c.Hidden, c.SharedWidth()
	if n == 0 {
		return
	}
	s.SharedW1, s.SharedW2 = shape(c.Type, n, d), shape(c.Type, d, n)
	if c.Activation.Gated() {
		s.SharedW3 = s.SharedW1
	}
	s.SharedH, s.SharedA, s.SharedY = shape(c.Type, tokens, c.HParts()*n), shape(c.Type, tokens, n), shape(c.Type, tokens, d)
	if c.SharedGate {
		s.SharedGate, s.SharedScore = shape(c.Type, d), shape(F32, tokens)
	}
}
