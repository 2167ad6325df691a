package reference_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
)

// random is a layer with random weights and tokens, at scales that keep every tensor of order
// 1.
type random struct {
	*reference.Layer
	x, router, w1, w2 []uint16
}

func newRandom(t testing.TB, c spec.Config, tokens int, seed uint64) random {
	t.Helper()
	s := c.Shapes(tokens)
	r := random{
		x:      reference.NewNormal(seed, 1).Values(s.X.Elements()),
		router: reference.NewNormal(seed+1, 2/math.Sqrt(float64(c.Hidden))).Values(s.Router.Elements()),
		w1:     reference.NewNormal(seed+2, 1/math.Sqrt(float64(c.Hidden))).Values(s.W1.Elements()),
		w2:     reference.NewNormal(seed+3, 2/math.Sqrt(float64(c.Intermediate))).Values(s.W2.Elements()),
	}
	var err error
	r.Layer, err = reference.NewLayer(c, r.router, r.w1, r.w2)
	require.NoError(t, err)
	return r
}

// naive computes the unrounded layer directly from its definition, with simple loops.
func naive(r random, scores []float64, experts []int32, tokens int) (o, h []float64) {
	c := r.Config()
	d, n, k := c.Hidden, c.Intermediate, c.TopK
	o, h = make([]float64, tokens*d), make([]float64, tokens*k*2*n)
	for t := range tokens {
		for j := range k {
			e := int(experts[t*k+j])
			if e < 0 || e >= c.NumExperts {
				continue
			}
			hr := h[(t*k+j)*2*n:][:2*n]
			a := make([]float64, n)
			for m := range n {
				gate, up := e*2*n+m, e*2*n+n+m
				if c.GateUp == spec.Interleaved {
					gate, up = e*2*n+2*m, e*2*n+2*m+1
				}
				for i := range d {
					x := num.BF16ToFloat64(r.x[t*d+i])
					hr[m] += x * num.BF16ToFloat64(r.w1[gate*d+i])
					hr[n+m] += x * num.BF16ToFloat64(r.w1[up*d+i])
				}
				a[m] = hr[m] / (1 + math.Exp(-hr[m])) * hr[n+m]
			}
			for i := range d {
				var y float64
				for m, v := range a {
					y += v * num.BF16ToFloat64(r.w2[(e*d+i)*n+m])
				}
				o[t*d+i] += scores[t*k+j] * y
			}
		}
	}
	return o, h
}

var configs = []spec.Config{
	{Hidden: 128, Intermediate: 64, NumExperts: 1, TopK: 1},
	{Hidden: 192, Intermediate: 64, NumExperts: 5, TopK: 2, GateUp: spec.Interleaved},
	{Hidden: 640, Intermediate: 128, NumExperts: 8, TopK: 3, Logits: spec.F32},
}

func TestForwardIsTheDefinition(t *testing.T) {
	const tokens = 13
	for _, c := range configs {
		t.Run(c.String(), func(t *testing.T) {
			r := newRandom(t, c, tokens, 7)
			routing, out, err := r.Forward(r.x, reference.Unrounded)
			require.NoError(t, err)
			o, h := naive(r, routing.Scores, routing.ExpertIDs, tokens)
			assert.InDeltaSlice(t, o, out.O, 1e-12)
			assert.InDeltaSlice(t, h, out.H, 1e-12)
		})
	}
}

// TestForwardByHand compares a pass with values computed by hand. One token chooses one expert,
// which has three weights other than 0.
func TestForwardByHand(t *testing.T) {
	const d, n = 128, 64
	bits := num.Float64ToBF16
	for _, layout := range []spec.GateUp{spec.Concatenated, spec.Interleaved} {
		c := spec.Config{Hidden: d, Intermediate: n, NumExperts: 2, TopK: 2, GateUp: layout}
		x, router := make([]uint16, d), make([]uint16, 2*d)
		w1, w2 := make([]uint16, 2*2*n*d), make([]uint16, 2*d*n)
		x[0], x[127] = bits(2), bits(1)
		router[1*d+127] = bits(3) // expert 0 has logit 0, expert 1 has logit 3, so expert 1 comes first
		gate, up := 5, n+5
		if layout == spec.Interleaved {
			gate, up = 10, 11
		}
		w1[(2*n+gate)*d+0] = bits(1)   // gate of neuron 5 of expert 1 is 2
		w1[(2*n+up)*d+127] = bits(1.5) // up of neuron 5 of expert 1 is 1.5
		w2[(d+9)*n+5] = bits(0.5)      // Y[9] = A[5]/2
		l, err := reference.NewLayer(c, router, w1, w2)
		require.NoError(t, err)
		routing, out, err := l.Forward(x, reference.Unrounded)
		require.NoError(t, err)
		assert.Equal(t, []float64{0, 3}, routing.Logits)
		assert.Equal(t, []int32{1, 0}, routing.ExpertIDs)
		assert.InDelta(t, 0.95257412682243336, routing.Scores[0], 1e-15)
		assert.InDelta(t, 0.04742587317756678, routing.Scores[1], 1e-15)
		assert.Equal(t, 2.0, out.H[5])
		assert.Equal(t, 1.5, out.H[n+5])
		// silu(2) = 1.7615941559557649; A = 2.6423912339336473; Y = A/2
		assert.InDelta(t, 0.95257412682243336*1.32119561696682365, out.O[9], 1e-15)

		routing, out, err = l.Forward(x, reference.Rounded)
		require.NoError(t, err)
		assert.Equal(t, float64(float32(0.95257412682243336)), routing.Scores[0])
		// A rounds to 2.640625 (steps of 1/64), Y is 1.3203125, O is
		// 1.25769..., which rounds to 1.2578125 (steps of 1/128).
		assert.Equal(t, 1.2578125, out.O[9])
	}
}

// TestRoundedRoundsWhereKernelsDo checks that H, A, Y and O are rounded once each, and that A
// is computed from the sums, not from the rounded H.
func TestRoundedRoundsWhereKernelsDo(t *testing.T) {
	const tokens = 5
	for _, c := range configs {
		r := newRandom(t, c, tokens, 3)
		d, n, k := c.Hidden, c.Intermediate, c.TopK
		routing, out, err := r.Forward(r.x, reference.Rounded)
		require.NoError(t, err)
		round := func(x float64) float64 { return num.BF16ToFloat64(num.Float64ToBF16(x)) }
		_, h := naive(r, routing.Scores, routing.ExpertIDs, tokens)
		for tok := range tokens {
			sum := make([]float64, d)
			for j := range k {
				hr := h[(tok*k+j)*2*n:][:2*n]
				e := int(routing.ExpertIDs[tok*k+j])
				for i := range d {
					var y float64
					for m := range n {
						a := round(hr[m] / (1 + math.Exp(-hr[m])) * hr[n+m])
						y += a * num.BF16ToFloat64(r.w2[(e*d+i)*n+m])
					}
					sum[i] += routing.Scores[tok*k+j] * round(y)
				}
			}
			for i := range sum {
				require.Equal(t, round(sum[i]), out.O[tok*d+i])
			}
		}
		for i := range h {
			require.Equal(t, round(h[i]), out.H[i])
		}
	}
}

// TestRoundedIsNearUnrounded checks that rounding changes the results, within the bounds for
// kernels.
func TestRoundedIsNearUnrounded(t *testing.T) {
	const tokens = 64
	for _, c := range configs {
		r := newRandom(t, c, tokens, 11)
		routing, rounded, err := r.Forward(r.x, reference.Rounded)
		require.NoError(t, err)
		exact, err := r.Experts(r.x, routing.Scores, routing.ExpertIDs, nil, reference.Unrounded)
		require.NoError(t, err)
		report := reference.Compare(bf16s(rounded.O), exact.O, tokens, c.Hidden)
		require.NoError(t, report.Check(reference.VsUnrounded))
		assert.Greater(t, report.Frobenius, 5e-4, "nothing was rounded")
		require.NoError(t, reference.Compare(bf16s(rounded.O), rounded.O, tokens, c.Hidden).Check(reference.VsRounded))
		require.NoError(t, reference.Compare(bf16s(rounded.H), exact.H, tokens*c.TopK, 2*c.Intermediate).Check(reference.VsUnrounded))
	}
}

func bf16s(values []float64) []uint16 {
	bits := make([]uint16, len(values))
	for i, v := range values {
		bits[i] = num.Float64ToBF16(v)
	}
	return bits
}

// TestSampledEqualsFull checks that the result of a token has the same bits when it is computed
// alone, in a sample, and among all tokens.
func TestSampledEqualsFull(t *testing.T) {
	const tokens = 41
	c := spec.Config{Hidden: 640, Intermediate: 64, NumExperts: 6, TopK: 2}
	r := newRandom(t, c, tokens, 5)
	for _, rounding := range []reference.Rounding{reference.Unrounded, reference.Rounded} {
		routing, full, err := r.Forward(r.x, rounding)
		require.NoError(t, err)
		for _, sample := range [][]int32{{40}, {7, 3, 3, 0, 39}, {}} {
			part, err := r.Route(r.x, sample, rounding)
			require.NoError(t, err)
			assert.Equal(t, reference.Gather(routing.Logits, sample, c.NumExperts), part.Logits)
			assert.Equal(t, reference.Gather(routing.Scores, sample, c.TopK), part.Scores)
			assert.Equal(t, reference.Gather(routing.ExpertIDs, sample, c.TopK), part.ExpertIDs)
			out, err := r.Experts(r.x, routing.Scores, routing.ExpertIDs, sample, rounding)
			require.NoError(t, err)
			assert.Equal(t, sample, append([]int32{}, out.Tokens...))
			assert.Equal(t, reference.Gather(full.O, sample, c.Hidden), out.O)
			assert.Equal(t, reference.Gather(full.H, sample, c.TopK*2*c.Intermediate), out.H)
		}
	}
}

func TestSkippedAndRepeatedExperts(t *testing.T) {
	c := spec.Config{Hidden: 128, Intermediate: 64, NumExperts: 3, TopK: 2}
	r := newRandom(t, c, 4, 9)
	scores := []float64{.5, .5, 2, -1, 1, 1, .25, .75}
	experts := []int32{1, 1, 3, 2, -1, math.MaxInt32, 0, 1}
	out, err := r.Experts(r.x, scores, experts, nil, reference.Unrounded)
	require.NoError(t, err)
	o, h := naive(r, scores, experts, 4)
	assert.InDeltaSlice(t, o, out.O, 1e-13)
	assert.InDeltaSlice(t, h, out.H, 1e-13)
	assert.Equal(t, make([]float64, 128), out.O[2*128:3*128], "both experts skipped")
	assert.Equal(t, out.H[:128], out.H[128:256], "one expert twice")
}

func TestNoTokens(t *testing.T) {
	r := newRandom(t, configs[0], 0, 1)
	routing, out, err := r.Forward(nil, reference.Rounded)
	require.NoError(t, err)
	assert.Empty(t, routing.Scores)
	assert.Empty(t, out.O)
}

func TestArgErrors(t *testing.T) {
	c := configs[1]
	r := newRandom(t, c, 2, 1)
	_, err := reference.NewLayer(spec.Config{}, nil, nil, nil)
	assert.ErrorContains(t, err, "Config.Hidden is 0")
	_, err = reference.NewLayer(c, r.router, r.w2, r.w1)
	assert.EqualError(t, err, "W1 is 61440 elements, must be 122880 (bf16 [5 128 192])")
	_, err = r.Route(r.x[:200], nil, reference.Rounded)
	assert.EqualError(t, err, "x is 200 elements, must be [T, 192]")
	_, err = r.Route(r.x, []int32{0, 2}, reference.Rounded)
	assert.EqualError(t, err, "tokens[1] is 2, must be a token of x, 0 to 1")
	_, err = r.Experts(r.x, make([]float64, 3), make([]int32, 4), nil, reference.Rounded)
	assert.EqualError(t, err, "scores is 3 elements, must be 4 ([T, K])")
	_, err = r.Experts(r.x, make([]float64, 4), make([]int32, 5), nil, reference.Rounded)
	assert.EqualError(t, err, "experts is 5 elements, must be 4 ([T, K])")
}
