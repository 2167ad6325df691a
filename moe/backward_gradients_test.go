package moe_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/kernel/dw"
)

// withBackward prepares a backward pass after a forward pass that saved H.
func withBackward(t testing.TB, tr *trial.Trial, weights moe.Type) trial.Results {
	t.Helper()
	saved := forward(t, tr, tr.Args)
	require.NoError(t, tr.PrepareBackward(17, weights))
	return saved
}

// checkBackward compares every gradient with the reference, both without rounding and with the
// rounding of the kernels.
func checkBackward(t testing.TB, tr *trial.Trial, b moe.BackwardArgs, saved trial.Results, routed bool) {
	t.Helper()
	for _, rounding := range []reference.Rounding{reference.Unrounded, reference.Rounded} {
		rep, err := tr.CheckBackward(b, saved, trial.BackwardCheck{Routed: routed, Rounding: rounding, Tokens: 256, Rows: 256})
		require.NoError(t, err)
		t.Logf("%v", rep)
		require.NoError(t, rep.Check())
	}
}

// gradients returns the bits of all gradients that b asks for.
func gradients(t testing.TB, tr *trial.Trial, b moe.BackwardArgs) map[string]trial.Values {
	t.Helper()
	all := map[string]trial.Values{}
	for name, of := range wanted(&b) {
		if !of.IsZero() {
			v, err := tr.Rows(*of, 1, nil)
			require.NoError(t, err)
			all[name] = v
		}
	}
	return all
}

// wanted returns the tensors that a pass writes.
func wanted(b *moe.BackwardArgs) map[string]*moe.Tensor {
	return map[string]*moe.Tensor{"DX": &b.DX, "DScores": &b.DScores, "DW1": &b.DW1.Tensor, "DW2": &b.DW2.Tensor, "DRouter": &b.DRouter.Tensor}
}

// sameGradients checks that two passes have the same bits in every gradient. It reports the first
// difference.
func sameGradients(t testing.TB, want, got map[string]trial.Values, format string, args ...any) {
	t.Helper()
	require.Len(t, got, len(want), format, args)
	for name, w := range want {
		g := got[name]
		require.Len(t, g.Bits, len(w.Bits), name)
		require.Len(t, g.F32, len(w.F32), name)
		for i, v := range w.Bits {
			if g.Bits[i] != v {
				t.Fatalf("%s: %s[%d] is %#x, not %#x", fmt.Sprintf(format, args...), name, i, g.Bits[i], v)
			}
		}
		for i, v := range w.F32 {
			if math.Float32bits(g.F32[i]) != math.Float32bits(v) {
				t.Fatalf("%s: %s[%d] is %v, not %v", fmt.Sprintf(format, args...), name, i, g.F32[i], v)
			}
		}
	}
}

// backwardSizes covers edge cases: the least width, odd numbers of tiles, one expert, one slot,
// experts without tokens, one token.
var backwardSizes = []struct {
	tokens int
	config moe.Config
}{
	{64, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}},
	{100, moe.Config{Hidden: 192, Intermediate: 128, NumExperts: 8, TopK: 3}},
	{40, moe.Config{Hidden: 128, Intermediate: 192, NumExperts: 16, TopK: 8, GateUp: spec.Interleaved}},
	{200, moe.Config{Hidden: 192, Intermediate: 64, NumExperts: 1, TopK: 1}},
	{1, moe.Config{Hidden: 256, Intermediate: 64, NumExperts: 60, TopK: 4}},
	{70, moe.Config{Hidden: 320, Intermediate: 64, NumExperts: 12, TopK: 1, Logits: moe.F32, GateUp: spec.Interleaved}},
}

func TestBackwardSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	for i, c := range backwardSizes {
		weights := []moe.Type{moe.BF16, moe.F32}[i%2]
		t.Run(fmt.Sprintf("%d %v %v", c.tokens, c.config, weights), func(t *testing.T) {
			tr := trialOn(t, testDevice(t), c.config, c.tokens)
			saved := withBackward(t, tr, weights)
			require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
			checkBackward(t, tr, tr.Back, saved, true)
			without := gradients(t, tr, tr.Back)

			require.NoError(t, tr.AddLogitGradients(23))
			require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
			checkBackward(t, tr, tr.Back, saved, true)
			with := gradients(t, tr, tr.Back)
			for _, name := range []string{"DW1", "DW2", "DScores"} {
				require.Equal(t, without[name], with[name], "%s is none of the logits' affair", name)
			}
			require.NotEqual(t, without["DX"], with["DX"])
			require.NotEqual(t, without["DRouter"], with["DRouter"])
		})
	}
}

// expertsBackward returns the buffers of b that BackwardExperts uses.
func expertsBackward(b moe.BackwardArgs) moe.BackwardArgs {
	b.DRouter = moe.Gradient{}
	return b
}

// TestBackwardExperts checks that BackwardExperts accepts all ids: ids out of range get no
// gradients, and repeated ids count each time.
func TestBackwardExperts(t *testing.T) {
	for i, c := range []moe.Config{
		{Hidden: 192, Intermediate: 64, NumExperts: 6, TopK: 3},
		{Hidden: 128, Intermediate: 192, NumExperts: 40, TopK: 8, GateUp: spec.Interleaved},
	} {
		if testing.Short() && i > 0 {
			break
		}
		t.Run(c.String(), func(t *testing.T) {
			const tokens = 70
			tr := trialOn(t, testDevice(t), c, tokens)
			saved := withRouting(t, tr, tokens)
			require.NoError(t, tr.PrepareBackward(17, moe.F32))
			b := tr.Back
			b.DRouter = moe.Gradient{}
			require.NoError(t, tr.PoisonGradients(b))
			require.NoError(t, tr.Call().BackwardExperts(tr.Stream(), expertsBackward(b)))
			require.NoError(t, tr.Stream().Synchronize(testContext(t)))
			checkBackward(t, tr, b, saved, false)
			got := gradients(t, tr, b)
			require.Equal(t, make([]uint16, c.Hidden), got["DX"].Bits[:c.Hidden], "a token without experts")
			for i, id := range saved.ExpertIDs {
				if id < 0 || int(id) >= c.NumExperts {
					require.Zero(t, math.Float32bits(got["DScores"].F32[i]), "a skipped slot")
				}
			}
		})
	}
}

// withRouting runs ForwardExperts with the caller's ids and scores.
func withRouting(t testing.TB, tr *trial.Trial, tokens int) trial.Results {
	ids, scores := givenRouting(tr.Layer.Config(), tokens)
	require.NoError(t, tr.Poison())
	s, a := tr.Stream(), tr.Args
	require.NoError(t, s.CopyToDevice(a.ExpertIDs.Ptr, num.Bytes(ids)))
	require.NoError(t, s.CopyToDevice(a.Scores.Ptr, num.Bytes(scores)))
	require.NoError(t, tr.Call().ForwardExperts(s, a))
	require.NoError(t, s.Synchronize(testContext(t)))
	saved, err := tr.Results(true)
	require.NoError(t, err)
	return saved
}

// TestBackwardOneExpert routes all tokens to one expert. The weight gradients of the other experts
// become zero, or keep their values if gradients accumulate.
func TestBackwardOneExpert(t *testing.T) {
	c := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 5, TopK: 1}
	tokens := dw.SplitRows + 70
	if onGPU() {
		tokens += 2 * dw.SplitRows
	} else if raceDetector || testing.Short() {
		tokens = 300 // without splits, which the tests of package dw cover
	}
	tr := trialOn(t, testDevice(t), c, tokens, accumulating(c)...)
	s, a := tr.Stream(), tr.Args
	ids, scores := make([]int32, tokens), make([]float32, tokens)
	for i := range ids {
		ids[i], scores[i] = 3, 0.5
	}
	require.NoError(t, s.CopyToDevice(a.ExpertIDs.Ptr, num.Bytes(ids)))
	require.NoError(t, s.CopyToDevice(a.Scores.Ptr, num.Bytes(scores)))
	require.NoError(t, tr.Call().ForwardExperts(s, a))
	saved, err := tr.Results(true)
	require.NoError(t, err)
	require.NoError(t, tr.PrepareBackward(17, moe.BF16))
	b := tr.Back
	b.DRouter = moe.Gradient{}
	require.NoError(t, tr.PoisonGradients(b))
	require.NoError(t, tr.Call().BackwardExperts(s, expertsBackward(b)))
	require.NoError(t, s.Synchronize(testContext(t)))
	checkBackward(t, tr, b, saved, false)

	// A pass that accumulates doubles the gradient of the expert with tokens. It must not change
	// those of the other experts, whatever their old values are.
	once := gradients(t, tr, b)
	require.NoError(t, tr.PoisonGradients(b))
	b.DW1.Accumulate, b.DW2.Accumulate = true, true
	for name, to := range map[string]moe.Gradient{"DW1": b.DW1, "DW2": b.DW2} {
		of, bits := once[name].Bits, len(once[name].Bits)/c.NumExperts
		require.Equal(t, make([]uint16, 3*bits), of[:3*bits], "%s of experts without tokens", name)
		require.NoError(t, s.CopyToDevice(at(to.Tensor, 2*3*bits), num.Bytes(of[3*bits:4*bits])))
	}
	require.NoError(t, tr.Call().BackwardExperts(s, expertsBackward(b)))
	require.NoError(t, s.Synchronize(testContext(t)))
	added := gradients(t, tr, b)
	for _, name := range []string{"DW1", "DW2"} {
		want, bits := doubled(once[name]).Bits, len(once[name].Bits)/c.NumExperts
		for i := range want {
			if i/bits != 3 {
				want[i] = reference.Poison
			}
		}
		require.Equal(t, want, added[name].Bits, name)
	}
}

// TestEveryGradientAccumulates checks that a pass doubles every gradient of a weight if it adds to the
// result of a pass that overwrites. TestLoRA has the gradients of an adapter.
func TestEveryGradientAccumulates(t *testing.T) {
	c := moe.Config{Hidden: 192, Intermediate: 64, NumExperts: 5, TopK: 2, GateUp: spec.Apart, Bias: true, RouterBias: true, ExpertScale: true, Score: spec.SoftmaxAll,
		SharedExperts: 3, SharedGate: true}
	tr := newTrial(t, c, 100, 6, accumulating(c)...)
	withBackward(t, tr, moe.F32)
	require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
	once := map[moe.TensorID]trial.Values{}
	for _, id := range spec.Weights {
		if g := tr.Back.Gradient(id); g != nil && !g.IsZero() {
			v, err := tr.Rows(g.Tensor, 1, nil)
			require.NoError(t, err)
			once[id], g.Accumulate = v, true
		}
	}
	require.Len(t, once, 13, "every weight except the selection bias has a gradient")
	require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
	for id, v := range once {
		twice, err := tr.Rows(tr.Back.Gradient(id).Tensor, 1, nil)
		require.NoError(t, err)
		require.Equal(t, doubled(v), twice, "gradient of %v", id)
	}
}

// doubled returns twice the values of a gradient: the bits that a pass leaves if it adds the gradient
// to itself. The sum before rounding is less than half a unit in the last place away from this value,
// so it rounds to this value.
func doubled(v trial.Values) trial.Values {
	if v.Type == moe.F32 {
		return trial.Values{Type: v.Type, F32: times(v.F32, 2)}
	}
	decode, encode := num.DecodeBF16[float32], num.EncodeBF16[float32]
	if v.Type == moe.F16 {
		decode, encode = num.DecodeF16[float32], num.EncodeF16[float32]
	}
	wide, bits := make([]float32, len(v.Bits)), make([]uint16, len(v.Bits))
	decode(wide, v.Bits)
	encode(bits, times(wide, 2))
	return trial.Values{Type: v.Type, Bits: bits}
}

func at(of moe.Tensor, bytes int) driver.DevicePtr { return of.Ptr + driver.DevicePtr(bytes) }

// TestBackwardFrozen checks three properties of a pass with a single wanted gradient: the gradient
// has the same bits as in a pass with all gradients, the pass has fewer launches, and it leaves
// other buffers unchanged.
func TestBackwardFrozen(t *testing.T) {
	tr := trialOn(t, testDevice(t), tiny, 90)
	withBackward(t, tr, moe.BF16)
	s := tr.Stream()
	require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
	all := gradients(t, tr, tr.Back)
	most, err := launches(t, s, func() error { return tr.Call().Backward(s, tr.Back) })
	require.NoError(t, err)
	for name := range wanted(&moe.BackwardArgs{}) {
		b := tr.Back
		for other, of := range wanted(&b) {
			if other != name {
				*of = moe.Tensor{}
			}
		}
		require.NoError(t, tr.PoisonGradients(tr.Back))
		n, err := launches(t, s, func() error { return tr.Call().Backward(s, b) })
		require.NoError(t, err)
		require.Less(t, n, most, name)
		require.NoError(t, tr.Call().Backward(s, b))
		require.NoError(t, s.Synchronize(testContext(t)))
		for other, v := range gradients(t, tr, tr.Back) {
			if other == name {
				require.Equal(t, all[name], v, "%s alone", name)
				continue
			}
			for i, x := range v.Bits {
				if x != reference.Poison {
					require.Equal(t, reference.Poison, x, "%s alone wrote %s, at %d", name, other, i)
				}
			}
			for i, x := range v.F32 {
				if bits := math.Float32bits(x); bits != math.MaxUint32 {
					require.Equal(t, uint32(math.MaxUint32), bits, "%s alone wrote %s, at %d", name, other, i)
				}
			}
		}
	}
	b := tr.Back
	for _, of := range wanted(&b) {
		*of = moe.Tensor{}
	}
	n, err := launches(t, s, func() error { return tr.Call().Backward(s, b) })
	wantArgError(t, err, "Backward")
	require.Zero(t, n, "nothing is wanted")
}

// TestBackwardNoTokens checks that a pass without tokens sets the gradients to
// zero.
func TestBackwardNoTokens(t *testing.T) {
	tr := trialOn(t, testDevice(t), tiny, 0, accumulating(tiny)...)
	require.NoError(t, tr.PrepareBackward(17, moe.F32))
	b := tr.Back
	b.DW2.Accumulate = true
	b.Workspace = moe.Buffer{}
	require.NoError(t, tr.Stream().Fill32(b.DW2.Ptr, 0x3f800000, b.DW2.Shape.Elements()))
	require.NoError(t, tr.RunBackward(testContext(t), b))
	got := gradients(t, tr, b)
	require.Equal(t, make([]float32, b.DW1.Shape.Elements()), got["DW1"].F32)
	require.Equal(t, make([]float32, b.DRouter.Shape.Elements()), got["DRouter"].F32)
	for _, v := range got["DW2"].F32 {
		require.Equal(t, float32(1), v)
	}
	only := expertsBackward(b)
	only.DW1, only.DW2 = moe.Gradient{}, moe.Gradient{}
	n, err := launches(t, tr.Stream(), func() error { return tr.Call().BackwardExperts(tr.Stream(), only) })
	require.NoError(t, err)
	require.Zero(t, n)
}

// TestCheckBackwardFails checks that one wrong element of a gradient is detected.
func TestCheckBackwardFails(t *testing.T) {
	tr := trialOn(t, testDevice(t), tiny, 50)
	saved := withBackward(t, tr, moe.F32)
	require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
	checkBackward(t, tr, tr.Back, saved, true)
	s := tr.Stream()
	for name, of := range wanted(&tr.Back) {
		for what, bits := range map[string]uint32{"NaN": 0x7fff7fff, "never written": 0xffffffff, "100": 0x42c842c8} {
			was := make([]byte, 4)
			require.NoError(t, s.CopyToHost(was, of.Ptr))
			require.NoError(t, s.Fill32(of.Ptr, bits, 1))
			rep, err := tr.CheckBackward(tr.Back, saved, trial.BackwardCheck{Routed: true, Tokens: 50, Rows: 1 << 20})
			require.NoError(t, err)
			require.ErrorContains(t, rep.Check(), name, what)
			require.NoError(t, s.CopyToDevice(of.Ptr, was))
		}
	}
}
