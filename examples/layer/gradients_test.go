package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// gradients holds the results of a backward pass.
type gradients struct {
	dx, drouter, dw1, dw2 []uint16
	dscores               []float32
}

// gradients reads the gradients from the output file. It joins gate and up.
func (p paths) gradients(t testing.TB, c moe.Config, tokens int, separate bool) (g gradients) {
	count := 8
	if separate {
		count = 9
	}
	f := p.open(t, count)
	of := dtypes[c.Type]
	rows, d, n, e := int64(tokens), int64(c.Hidden), int64(c.Intermediate), int64(c.NumExperts)
	g.dx = numbers[uint16](t, f, "dx", of, rows, d)
	g.dscores = numbers[float32](t, f, "dscores", "F32", rows, int64(c.TopK))
	g.drouter = numbers[uint16](t, f, "drouter.weight", of, e, d)
	g.dw2 = numbers[uint16](t, f, "dexperts.down", of, e, d, n)
	if !separate {
		g.dw1 = numbers[uint16](t, f, "dexperts.gate_up", of, e, 2*n, d)
		return g
	}
	gate, up := numbers[uint16](t, f, "dexperts.gate", of, e, n, d), numbers[uint16](t, f, "dexperts.up", of, e, n, d)
	for i := range e {
		g.dw1 = append(g.dw1, gate[i*n*d:][:n*d]...)
		g.dw1 = append(g.dw1, up[i*n*d:][:n*d]...)
	}
	return g
}

// checkGradients compares the gradients g with float64 gradients, which are computed from the
// results r of the forward pass.
func (x tensors) checkGradients(t testing.TB, r trial.Results, g gradients) {
	c := x.config
	ref, err := reference.NewLayer(c, x.router, x.w1, x.w2)
	require.NoError(t, err)
	scores := reference.Widen(r.Scores)
	out, err := ref.Experts(x.x, scores, r.ExpertIDs, nil, reference.Rounded)
	require.NoError(t, err)
	// The layer's H is in the layer's type, and its rows are sorted by expert.
	rows, width := reference.Group(r.ExpertIDs, c.NumExperts).Row, 2*c.Intermediate
	toBits := map[moe.Type]func(float64) uint16{moe.BF16: num.Float64ToBF16, moe.F16: num.Float64ToF16}[c.Type]
	h := make([]uint16, len(out.H))
	for pair, row := range rows {
		for j, v := range out.H[pair*width:][:width] {
			h[int(row)*width+j] = toBits(v)
		}
	}
	back, err := ref.Gradients(reference.Backward{
		X: x.x, DO: x.do, Scores: scores, ExpertIDs: r.ExpertIDs, H: h, Routed: true,
	}, reference.Unrounded)
	require.NoError(t, err)
	tokens, err := back.Tokens(nil)
	require.NoError(t, err)
	router, err := back.Router(reference.SoftmaxBackward(scores, reference.Widen(g.dscores), c.TopK))
	require.NoError(t, err)
	dw1, err := back.W1(reference.AllRows(c.NumExperts, width))
	require.NoError(t, err)
	dw2, err := back.W2(reference.AllRows(c.NumExperts, c.Hidden))
	require.NoError(t, err)
	for name, report := range map[string]reference.Report{
		"dx":      reference.CompareOf(c.Type, g.dx, tokens.DX, x.tokens, c.Hidden),
		"dscores": reference.Compare(g.dscores, tokens.DScores, x.tokens, c.TopK),
		"drouter": reference.CompareOf(c.Type, g.drouter, router, c.NumExperts, c.Hidden),
		"dw1":     reference.CompareOf(c.Type, g.dw1, dw1, c.NumExperts*width, c.Hidden),
		"dw2":     reference.CompareOf(c.Type, g.dw2, dw2, c.NumExperts*c.Hidden, c.Intermediate),
	} {
		assert.NoError(t, report.Check(reference.BoundsOf(c.Type, reference.Unrounded)), name)
	}
}

// TestGradients checks that an input file with do and x gives right gradients, and the same
// outputs as a file without do.
func TestGradients(t *testing.T) {
	interleaved, half := small, small
	interleaved.GateUp = "interleaved"
	half.Type, half.Logits = moe.F16, moe.F16
	tests := []struct {
		name     string
		config   moe.Config
		separate bool
		args     []string
	}{
		{"concatenated", small, false, nil},
		{"interleaved", interleaved, false, []string{"-gateup", "interleaved"}},
		{"separate", small, true, nil},
		{"fp16", half, false, nil},
	}
	for i, tt := range tests {
		if testing.Short() && i == 0 {
			continue // the cases "separate" and "fp16" already test concatenated gradients
		}
		t.Run(tt.name, func(t *testing.T) {
			x := randomTensors(tt.config, 40, 8).withDO(9)
			p := x.write(t, tt.separate)
			line := p.run(t, append([]string{"-topk", "2", "-device", drivertest.Name()}, tt.args...)...)
			assert.Contains(t, line, ", backward ")
			assert.Equal(t, []string{"o.safetensors", "w.safetensors", "x.safetensors"}, p.entries(t))
			g := p.gradients(t, tt.config, 40, tt.separate)
			count := 8
			if tt.separate {
				count++
			}
			r := p.results(t, tt.config, 40, count)
			x.check(t, r)
			x.checkGradients(t, r, g)
		})
	}
}

// TestGradientsOfNoTokens checks that the gradients of weights are zero if there are no tokens.
func TestGradientsOfNoTokens(t *testing.T) {
	p := randomTensors(small, 0, 8).withDO(9).write(t, true)
	p.run(t, "-topk", "2", "-device", drivertest.Name())
	g := p.gradients(t, small, 0, true)
	assert.Empty(t, g.dx)
	for _, w := range [][]uint16{g.drouter, g.dw1, g.dw2} {
		assert.Equal(t, make([]uint16, len(w)), w)
	}
}
