package moe_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// withLogits runs a forward pass that writes logits, and prepares backward.
func withLogits(t testing.TB, tr *trial.Trial) (trial.Results, []float64) {
	t.Helper()
	memory := moe.NewArena(testDevice(t))
	t.Cleanup(func() { require.NoError(t, memory.Free()) })
	tr.Args.Logits = memory.Tensor(tr.Layer.Shapes(tr.Tokens).Logits)
	losses := memory.Tensor(tr.Layer.Config().Gradients(tr.Tokens, moe.F32).RouterLosses)
	require.NoError(t, memory.Err())
	saved := withBackward(t, tr, moe.F32)
	tr.Back.RouterLosses = losses
	logits := make([]float64, tr.Args.Logits.Shape.Elements())
	require.NoError(t, moe.Read(tr.Stream(), tr.Args.Logits, logits))
	return saved, logits
}

// routerLosses computes the balance loss and the z-loss in float64, and the gradients of the logits
// with the coefficients. sequence is the number of tokens of a sequence.
func routerLosses(c moe.Config, logits []float64, ids []int32, balance, zLoss float64, sequence int) (values [2]float64, gradients []float32) {
	tokens := len(logits) / c.NumExperts
	counts := make([]float64, c.NumExperts)
	share := float64(c.NumExperts) / float64(c.TopK*sequence) / float64(tokens)
	for t := range tokens {
		if t%sequence == 0 {
			clear(counts)
			for _, id := range ids[t*c.TopK:][:sequence*c.TopK] {
				counts[id]++
			}
		}
		row := logits[t*c.NumExperts:][:c.NumExperts]
		var sum, dot float64
		for e, l := range row {
			sum += math.Exp(l)
			dot += math.Exp(l) * counts[e]
		}
		dot /= sum
		values[0] += share * dot
		values[1] += math.Log(sum) * math.Log(sum) / float64(tokens)
		for e, l := range row {
			p := math.Exp(l) / sum
			gradients = append(gradients, float32(p*(balance*share*(counts[e]-dot)+zLoss*2/float64(tokens)*math.Log(sum))))
		}
	}
	return values, gradients
}

// TestRouterLosses compares logits with the reference, and losses and their gradients with the
// definition. Some of the layers also add a caller's gradients of the logits.
func TestRouterLosses(t *testing.T) {
	for i, c := range backwardSizes {
		if testing.Short() && i > 0 {
			break // the others take too long for -short
		}
		t.Run(fmt.Sprintf("%d %v", c.tokens, c.config), func(t *testing.T) {
			tr := trialOn(t, testDevice(t), c.config, c.tokens)
			saved, logits := withLogits(t, tr)
			ref, err := reference.NewLayer(c.config, tr.Router, tr.W1, tr.W2)
			require.NoError(t, err)
			routing, err := ref.Route(tr.X, nil, reference.Rounded)
			require.NoError(t, err)
			for j, want := range routing.Logits {
				require.InDelta(t, want, logits[j], 1e-2*max(1, math.Abs(want)), "logit %d", j)
			}
			plain := tr.Back
			plain.RouterLosses = moe.Tensor{}
			require.NoError(t, tr.RunBackward(testContext(t), plain))
			without := gradients(t, tr, plain)

			if i%2 == 1 { // adds a caller's gradients
				require.NoError(t, tr.AddLogitGradients(23))
			}
			given := tr.Extra
			const balance, zLoss = 40, 3 // large enough to affect the results
			b, got := tr.Back, make([]float64, 2)
			b.Balance, b.ZLoss = balance, zLoss
			lengths := []int{c.tokens} // of a sequence; with the last one, the batch is one sequence
			if c.tokens%5 == 0 {
				lengths = []int{c.tokens / 5, 1, c.tokens}
			} else if c.tokens%2 == 0 {
				lengths = []int{c.tokens / 2, c.tokens}
			}
			for _, length := range lengths {
				if b.Sequence = length; length == c.tokens {
					b.Sequence = 0
				}
				values, extra := routerLosses(c.config, logits, saved.ExpertIDs, balance, zLoss, length)
				for j, v := range given {
					extra[j] += v
				}
				require.NoError(t, tr.RunBackward(testContext(t), b))
				tr.Extra = extra
				checkBackward(t, tr, b, saved, true)
				require.NoError(t, moe.Read(tr.Stream(), b.RouterLosses, got))
				require.InEpsilon(t, values[0], got[0], 1e-5, "balance loss of sequences of %d", length)
				require.InEpsilon(t, values[1], got[1], 1e-5, "z-loss")
			}
			with := gradients(t, tr, b)
			for _, name := range []string{"DW1", "DW2", "DScores"} {
				require.Equal(t, without[name], with[name], "%s is none of the logits' affair", name)
			}
			if c.config.NumExperts > 1 {
				require.NotEqual(t, without["DRouter"], with["DRouter"])
			}

			// A pass that only returns the values of the losses has the same gradients.
			plain.RouterLosses = b.RouterLosses
			require.NoError(t, tr.RunBackward(testContext(t), plain))
			sameGradients(t, without, gradients(t, tr, plain), "values of losses alone")
			again := make([]float64, 2)
			require.NoError(t, moe.Read(tr.Stream(), b.RouterLosses, again))
			require.Equal(t, got, again)
		})
	}
}

// TestCapturedLosses checks the losses of sequences and all gradients of a captured pass.
func TestCapturedLosses(t *testing.T) {
	const tokens, length, balance, zLoss = 70, 14, 40, 3
	tr := trialOn(t, testDevice(t), tiny, tokens)
	saved, logits := withLogits(t, tr)
	b, s := tr.Back, tr.Stream()
	b.Balance, b.ZLoss, b.Sequence = balance, zLoss, length
	g := capture(t, s, func() error { return tr.Call().Backward(s, b) })
	defer g.Close()
	values, extra := routerLosses(tiny, logits, saved.ExpertIDs, balance, zLoss, length)
	tr.Extra = extra
	for range 2 {
		require.NoError(t, tr.PoisonGradients(b))
		require.NoError(t, g.Launch(s))
		require.NoError(t, s.Synchronize(testContext(t)))
		got := make([]float64, 2)
		require.NoError(t, moe.Read(s, b.RouterLosses, got))
		require.InEpsilon(t, values[0], got[0], 1e-5, "balance loss")
		require.InEpsilon(t, values[1], got[1], 1e-5, "z-loss")
	}
	checkBackward(t, tr, b, saved, true)
}

// TestLogitsAlone checks that writing the logits changes no other output.
func TestLogitsAlone(t *testing.T) {
	tr := trialOn(t, testDevice(t), tiny, 90, moe.WithoutBackward())
	want := forward(t, tr, tr.Args)
	_, _ = withLogits(t, tr)
	require.Equal(t, want, forward(t, tr, tr.Args))
	f := tr.Args
	f.W1, f.W2, f.O, f.H = moe.Tensor{}, moe.Tensor{}, moe.Tensor{}, moe.Tensor{}
	before := make([]uint16, f.Logits.Shape.Elements())
	require.NoError(t, moe.Read(tr.Stream(), f.Logits, before))
	require.NoError(t, moe.Write(tr.Stream(), f.Logits, make([]uint16, len(before))))
	require.NoError(t, tr.Call().Route(tr.Stream(), f))
	after := make([]uint16, len(before))
	require.NoError(t, moe.Read(tr.Stream(), f.Logits, after))
	require.Equal(t, before, after, "Route alone")
}

// TestWrongRouterLosses checks that wrong arguments give an error.
func TestWrongRouterLosses(t *testing.T) {
	tr := trialOn(t, testDevice(t), tiny, 70)
	_, _ = withLogits(t, tr)
	s, good := tr.Stream(), tr.Back
	good.Balance = 1
	for _, w := range []struct {
		field, want string
		experts     bool
		make        func(b *moe.BackwardArgs)
	}{
		{"Logits", "Logits is missing, must be bf16 [70 6]", false, func(b *moe.BackwardArgs) { b.Logits = moe.Tensor{} }},
		{"Logits", "Logits is missing, must be bf16 [70 6]", false, func(b *moe.BackwardArgs) { b.Balance, b.Logits = 0, moe.Tensor{} }},
		{"Logits", "Logits is f32 [70 6], must be bf16 [70 6]", false, func(b *moe.BackwardArgs) { b.Logits.Shape.Type = moe.F32 }},
		{"Balance", "Balance is NaN, must be a finite coefficient", false, func(b *moe.BackwardArgs) { b.Balance = float32(math.NaN()) }},
		{"ZLoss", "ZLoss is -Inf, must be a finite coefficient", false, func(b *moe.BackwardArgs) { b.ZLoss = float32(math.Inf(-1)) }},
		{"RouterLosses", "RouterLosses is f32 [3], must be f32 [2]", false, func(b *moe.BackwardArgs) { b.RouterLosses.Shape.Dims[0] = 3 }},
		{"Sequence", "Sequence is 20, must be 0, or a divisor of the 70 tokens", false, func(b *moe.BackwardArgs) { b.Sequence = 20 }},
		{"Sequence", "Sequence is -7, must be 0, or a divisor of the 70 tokens", false, func(b *moe.BackwardArgs) { b.Sequence = -7 }},
		{"Sequence", "BackwardExperts knows nothing of the router", true, func(b *moe.BackwardArgs) { b.RouterLosses, b.Balance, b.Sequence = moe.Tensor{}, 0, 35 }},
		{"DX", "must be apart from RouterLosses", false, func(b *moe.BackwardArgs) { b.RouterLosses.Ptr = b.DX.Ptr }},
		{"Balance", "BackwardExperts knows nothing of the router", true, func(b *moe.BackwardArgs) { b.RouterLosses = moe.Tensor{} }},
		{"ZLoss", "BackwardExperts knows nothing of the router", true, func(b *moe.BackwardArgs) { b.RouterLosses, b.Balance, b.ZLoss = moe.Tensor{}, 0, 1 }},
		{"RouterLosses", "BackwardExperts knows nothing of the router", true, func(b *moe.BackwardArgs) { b.Balance = 0 }},
		{"DRouter", "BackwardExperts knows nothing of the router", true, func(b *moe.BackwardArgs) { b.DRouter = good.DRouter }},
		{"DRouter", "DRouter is missing, but to be added to, must be a tensor, or Accumulate false", false, func(b *moe.BackwardArgs) { b.DRouter = moe.Gradient{Accumulate: true} }},
	} {
		b := good
		if w.experts {
			b = expertsBackward(b)
		}
		w.make(&b)
		n, err := launches(t, s, func() error {
			if w.experts {
				return tr.Call().BackwardExperts(s, b)
			}
			return tr.Call().Backward(s, b)
		})
		wantArgError(t, err, w.field)
		require.ErrorContains(t, err, w.want)
		require.Zero(t, n)
	}
	require.NoError(t, tr.RunBackward(testContext(t), good))
}

// TestLogitsAreRounded checks that losses use the bf16 logits that Forward wrote.
func TestLogitsAreRounded(t *testing.T) {
	tr := trialOn(t, testDevice(t), tiny, 33, moe.WithoutBackward())
	_, logits := withLogits(t, tr)
	bits := make([]uint16, len(logits))
	require.NoError(t, moe.Read(tr.Stream(), tr.Args.Logits, bits))
	for i, b := range bits {
		require.Equal(t, num.BF16ToFloat64(b), logits[i])
	}
}
