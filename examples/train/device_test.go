package main

import (
	"context"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/num"
	"sonicmoe/internal/outside"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/ptx/ptxas"
)

func TestMain(m *testing.M) { os.Exit(drivertest.Main(m, open.Device)) }

// testDevice returns a layer on the tests' device, compiled without a cache.
func testDevice(t testing.TB, s size, frozen bool) *device {
	dev, err := open.Device(t.Context(), drivertest.Name())
	require.NoError(t, err)
	d, err := newDevice(t.Context(), dev, s.layer, s.tokens, frozen, cache.Open(cache.Options{Dir: "off"}))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, d.Close())
		jit.Forget(dev)
		require.NoError(t, dev.Close())
	})
	return d
}

func testSize(t testing.TB) size {
	s, err := findSize("tiny")
	require.NoError(t, err)
	return s
}

// read copies FP32 numbers from the device.
func (d *device) read(t testing.TB, p driver.DevicePtr, n int64) []float32 {
	out := make([]float32, n)
	require.NoError(t, d.stream.CopyToHost(num.Bytes(out), p))
	return out
}

// TestAdamKernel checks that the kernel's steps equal the host's, up to FP32 rounding.
func TestAdamKernel(t *testing.T) {
	d := testDevice(t, testSize(t), false)
	r := rand.New(rand.NewPCG(1, 1))
	const n = 2*adamThreads + 3
	first := narrow(randoms(r, n))
	first[0] = 0
	w, err := d.newWeight(moe.TensorAt(0, moe.BF16, n).Shape, append(first, 0)[:n], true)
	require.NoError(t, err)
	want := newParam(widen(first[:n]))
	for step := 1; step <= 4; step++ {
		grad := make([]float32, n)
		for i := range grad {
			grad[i] = float32(r.NormFloat64() * math.Pow(10, float64(-i%9)))
			if i%5 == 1 {
				grad[i] = 0
			}
			want.grad[i] = float64(grad[i])
		}
		require.NoError(t, d.put(w.grad, num.Bytes(grad)))
		a := adam{rate: 0.01, step: step}
		require.NoError(t, w.step(d.stream, a))
		want.update(a)
		require.NoError(t, d.wait(t.Context()))
	}
	got := d.read(t, w.main, n)
	bits := make([]uint16, n)
	require.NoError(t, d.get(num.Bytes(bits), w.layer))
	for i, v := range got {
		require.InDelta(t, want.w[i], v, 1e-6*max(1, math.Abs(want.w[i])), i)
		require.Equal(t, narrow([]float64{float64(v)})[0], bits[i], i)
	}
	assert.Zero(t, want.grad[0])
}

// layers returns the same layer on the device and on the host, and tokens.
func layers(t *testing.T, s size, frozen bool) (*deviceExperts, *hostExperts, []uint16) {
	r := rand.New(rand.NewPCG(3, 3))
	shapes, d := s.layer.Shapes(s.tokens), testDevice(t, s, frozen)
	scale := 1 / math.Sqrt(float64(s.layer.Hidden))
	bits := func(n int64) []uint16 { return narrow(normal(r, int(n), scale).w) }
	var w reference.Weights
	for _, id := range weightIDs(s.layer) {
		*w.Bits(id) = bits(shapes.Of(id).Elements())
	}
	router := bits(shapes.Router.Elements())
	onDevice, err := d.newExperts(w)
	require.NoError(t, err)
	inHost, err := newHostExperts(s.layer, frozen)(w)
	require.NoError(t, err)
	return onDevice.(*deviceExperts), inHost.(*hostExperts), router
}

// These are bounds of relative norms. The bounds after steps are larger, because Adam's first
// steps have the same length for every gradient, even for one that is only a rounding error.
const (
	bf16Bound = 6e-3
	adamBound = 5e-2
)

// requireClose compares a tensor with its expected value by the relative norm of the
// difference.
func requireClose(t testing.TB, bound float64, want, got []float64, what string) {
	t.Helper()
	require.Len(t, got, len(want))
	var off, size float64
	for i, w := range want {
		off, size = off+(got[i]-w)*(got[i]-w), size+w*w
	}
	require.Positive(t, size, what)
	require.LessOrEqual(t, math.Sqrt(off/size), bound, what)
}

// TestExperts checks that the two implementations give the same outputs and gradients, and that
// the gradients of several passes add up.
func TestExperts(t *testing.T) {
	for _, rank := range []int{0, 16} {
		s := testSize(t)
		if rank > 0 {
			s.layer.LoRARank, s.layer.LoRAAlpha = rank, float64(rank)
		}
		t.Run(s.layer.String(), func(t *testing.T) { checkExperts(t, s) })
	}
}

func checkExperts(t *testing.T, s size) {
	d, h, router := layers(t, s, false)
	r := rand.New(rand.NewPCG(4, 4))
	ctx := t.Context()
	n, bound := s.tokens*s.layer.Hidden, bf16Bound
	for pass := range 3 {
		x, do := narrow(randoms(r, n)), randoms(r, n)
		var dlogits []float64
		if pass != 1 {
			dlogits = randoms(r, s.tokens*s.layer.NumExperts)
		}
		want, err := h.Forward(ctx, x, router, true)
		require.NoError(t, err)
		got, err := d.Forward(ctx, x, router, true)
		require.NoError(t, err)
		require.Equal(t, want.ids, got.ids)
		requireClose(t, bound, want.o, got.o, "o")
		wantGrads, err := h.Backward(ctx, do, dlogits)
		require.NoError(t, err)
		grads, err := d.Backward(ctx, do, dlogits)
		require.NoError(t, err)
		requireClose(t, bound, wantGrads.x, grads.x, "dx")
		requireClose(t, bound, wantGrads.router, grads.router, "drouter")
		if pass == 1 { // the third pass begins with new gradients, after the step
			compareWeights(t, bound, d, h)
			require.NoError(t, h.Step(ctx, adam{rate: 0.01, step: 1}))
			require.NoError(t, d.Step(ctx, adam{rate: 0.01, step: 1}))
			bound = adamBound
		}
	}
	compareWeights(t, bound, d, h)
}

func compareWeights(t *testing.T, bound float64, d *deviceExperts, h *hostExperts) {
	c, compared := d.layer.Config(), 0
	for id, w := range d.weights {
		if learns(c, d.frozen, id) {
			compared++
			requireClose(t, bound, h.w[id].grad, doubles(d.read(t, w.grad.Ptr, w.grad.Shape.Elements())), "gradient of "+id.String())
		}
	}
	require.Equal(t, map[bool]int{false: 2, true: 4}[c.LoRARank > 0], compared)
}

// TestTokens checks that passes may have fewer tokens than the buffers, but not more.
func TestTokens(t *testing.T) {
	s := testSize(t)
	d, h, router := layers(t, s, false)
	r := rand.New(rand.NewPCG(6, 6))
	for _, tokens := range []int{1, s.tokens, 3} {
		x, do := narrow(randoms(r, tokens*s.layer.Hidden)), randoms(r, tokens*s.layer.Hidden)
		want, err := h.Forward(t.Context(), x, router, true)
		require.NoError(t, err)
		got, err := d.Forward(t.Context(), x, router, true)
		require.NoError(t, err)
		requireClose(t, bf16Bound, want.o, got.o, "o")
		wantGrads, err := h.Backward(t.Context(), do, nil)
		require.NoError(t, err)
		grads, err := d.Backward(t.Context(), do, nil)
		require.NoError(t, err)
		requireClose(t, bf16Bound, wantGrads.x, grads.x, "dx")
	}
	_, err := d.Forward(t.Context(), make([]uint16, (s.tokens+1)*s.layer.Hidden), router, true)
	assert.ErrorContains(t, err, "a pass has 129 tokens, must have at most 128")
}

// TestAssemble checks that ptxas assembles the optimizer's kernel without spills and warnings.
func TestAssemble(t *testing.T) {
	outside.Ptxas(t)
	k, err := adamKernel()
	require.NoError(t, err)
	_, report, err := ptxas.Assemble(t.Context(), k.Module.Print().PTX)
	require.NoError(t, err)
	require.Empty(t, ptxas.Complaint(report), report)
}

// TestFrozen checks that frozen experts do not change, and that gradients still pass through
// them.
func TestFrozen(t *testing.T) {
	s := testSize(t)
	d, h, router := layers(t, s, true)
	r := rand.New(rand.NewPCG(5, 5))
	n := s.tokens * s.layer.Hidden
	x, do := narrow(randoms(r, n)), randoms(r, n)
	before := append([]float64(nil), h.w[spec.TensorW1].w...)
	for _, e := range []experts{d, h} {
		first, err := e.Forward(context.Background(), x, router, true)
		require.NoError(t, err)
		g, err := e.Backward(context.Background(), do, nil)
		require.NoError(t, err)
		assert.NotZero(t, g.x[0])
		require.NoError(t, e.Step(context.Background(), adam{rate: 1, step: 1}))
		second, err := e.Forward(context.Background(), x, router, true)
		require.NoError(t, err)
		require.Equal(t, first.o, second.o)
	}
	assert.Equal(t, before, h.w[spec.TensorW1].w)
}
