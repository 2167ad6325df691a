package tune

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/autotune"
	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
	"sonicmoe/driver/open"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/faulty"
	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
)

func TestMain(m *testing.M) {
	autotune.WorkerMain()
	os.Exit(drivertest.Main(m, open.Device))
}

var (
	small = moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, TokensHint: 24}
	// uneven has widths that are no multiples of 64.
	uneven = moe.Config{Hidden: 144, Intermediate: 80, NumExperts: 4, TopK: 2, Bias: true, TokensHint: 24}
)

func newDevice(t testing.TB) *faulty.Device {
	t.Helper()
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	counted := faulty.Wrap(dev)
	t.Cleanup(func() {
		jit.Forget(counted)
		assert.NoError(t, counted.Close())
	})
	return counted
}

func openBench(t testing.TB, dev driver.Device, s task) (*bench, error) {
	t.Helper()
	s.Target = dev.Target()
	text, err := json.Marshal(s)
	require.NoError(t, err)
	b, err := newBench(t.Context(), autotune.Setting{Spec: text, Device: dev})
	if err != nil {
		return nil, err
	}
	return b.(*bench), nil
}

// TestBench checks three things: every product's default tiling gives right results and can be
// timed, both if the layer routes and if a histogram does, and Close releases everything on the
// caller's device.
func TestBench(t *testing.T) {
	for name, s := range map[string]task{
		"routed":       {Config: small, Backward: true},
		"by histogram": {Config: small, Backward: true, Histogram: []int64{10, 0, 1, 5}},
		"forward":      {Config: small},
		"uneven":       {Config: uneven, Backward: true},
	} {
		if testing.Short() && (name == "routed" || name == "by histogram") {
			continue // the two cases that stay cover forward and backward, and the command's test covers a histogram of tokens
		}
		t.Run(name, func(t *testing.T) {
			dev := newDevice(t)
			b, err := openBench(t, dev, s)
			require.NoError(t, err)
			choice := kernel.Choose(s.Config, dev.Target())
			for _, p := range kernel.Kernels.Products() {
				if p.Backward() && !s.Backward {
					continue
				}
				require.NoError(t, b.Verify(t.Context(), p.String(), choice[p.ID]), p.String())
				d, err := b.Time(t.Context(), p.String(), choice[p.ID])
				require.NoError(t, err, p.String())
				assert.Positive(t, d)
				runs, err := b.runs(p.ID)
				require.NoError(t, err)
				for _, r := range runs { // each run shows its own kernel
					seen := false
					b.base.call.Observe(func(kernel string, _ driver.Stream) error {
						seen = seen || kernel == r.kernel
						return nil
					})
					require.NoError(t, r.do(b.base.call))
					b.base.call.Observe(nil)
					assert.True(t, seen, r.kernel)
				}
			}
			assert.ErrorContains(t, b.Verify(t.Context(), "up", gemm.Tiling{TileN: 64}), "up.TileN is 64, must be one of")
			require.NoError(t, b.Close())
			live := dev.Live()
			assert.Zero(t, live.Allocations)
			assert.Zero(t, live.Streams)
			assert.Zero(t, live.Events)
		})
	}
}

// TestBenchOfKinds checks layers of other kinds. Every product's default tiling must give right
// results, with all outputs of its kernels, and must be timed.
func TestBenchOfKinds(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(c *moe.Config)
		outputs []string // some outputs of the pass that checks dh
	}{
		"gate and up apart, biases": {func(c *moe.Config) { c.GateUp, c.Bias = spec.Apart, true }, []string{"DW1", "DW3", "DB1", "DB3"}},
		"shared experts":            {func(c *moe.Config) { c.SharedExperts = 1 }, nil},
		"softmax over all":          {func(c *moe.Config) { c.Score = spec.SoftmaxAll }, nil},
		"router's biases and scales": {func(c *moe.Config) {
			c.Score, c.SelectionBias, c.RouterBias, c.ExpertScale = spec.Sigmoid, true, true, true
		}, nil},
		"packed weights": {func(c *moe.Config) { c.Weights = "mxfp4" }, []string{"DX", "DScores"}},
	} {
		if testing.Short() && name == "softmax over all" {
			continue // it has no tensor of its own
		}
		for _, h := range [][]int64{nil, {10, 1, 1, 5}} {
			if testing.Short() && (h != nil) != (name == "router's biases and scales") {
				continue
			}
			t.Run(fmt.Sprint(name, h), func(t *testing.T) {
				config := small
				c.change(&config)
				dev := newDevice(t)
				b, err := openBench(t, dev, task{Config: config, Backward: true, Histogram: h})
				require.NoError(t, err)
				choice := kernel.Choose(config, dev.Target())
				for _, p := range kernel.Kernels.Products() {
					if isLeftOut(config, p) {
						continue
					}
					require.NoError(t, b.Verify(t.Context(), p.String(), choice[p.ID]), p.String())
					_, err := b.Time(t.Context(), p.String(), choice[p.ID])
					require.NoError(t, err, p.String())
				}
				runs, err := b.runs(spec.ProductDH)
				require.NoError(t, err)
				var names []string
				for _, out := range runs[0].outputs {
					names = append(names, out.id.String())
				}
				assert.Subset(t, names, c.outputs)
				require.NoError(t, b.Close())
				assert.Zero(t, dev.Live().Allocations)
			})
		}
	}
}

// TestHistogram checks that a histogram is refused if it gives rows to fewer experts than a token
// needs.
func TestHistogram(t *testing.T) {
	_, err := openBench(t, newDevice(t), task{Config: small, Histogram: []int64{1, 0, 0, 0}})
	var arg *moe.ArgError
	require.ErrorAs(t, err, &arg)
	assert.Equal(t, "Histogram", arg.Field)
	for _, h := range [][]int64{{1, 2}, {1, 2, 3, -4}} {
		_, err = Layer(t.Context(), newDevice(t), small, Options{Histogram: h})
		require.ErrorAs(t, err, &arg)
	}
	_, err = openBench(t, newDevice(t), task{Config: small, Histogram: []int64{1 << 62, 1, 1, 1}})
	require.ErrorAs(t, err, &arg)
	b, err := openBench(t, newDevice(t), task{Config: small, Histogram: []int64{1, 100, 100, 0}})
	require.NoError(t, err)
	defer b.Close()
	r, err := b.trial.Results(false)
	require.NoError(t, err)
	rows := make([]int, small.NumExperts)
	for _, e := range r.ExpertIDs {
		rows[e]++
	}
	assert.Zero(t, rows[3])
	assert.Greater(t, rows[1], 4*rows[0])
	assert.Equal(t, small.TokensHint*small.TopK, rows[0]+rows[1]+rows[2])
}

// TestVerifyCanFail checks that Verify returns an error if one bit of an output differs, or if a
// kernel has written to an input.
func TestVerifyCanFail(t *testing.T) {
	dev := newDevice(t)
	b, err := openBench(t, dev, task{Config: small, Backward: true})
	require.NoError(t, err)
	defer b.Close()
	ctx, choice := t.Context(), kernel.Choose(small, dev.Target())
	for i, p := range kernel.Kernels.Products() {
		if i%2 == 0 && testing.Short() {
			continue // tries half of the products of each pass
		}
		point := choice[p.ID]
		require.NoError(t, b.Verify(ctx, p.String(), point))
		runs, err := b.runs(p.ID)
		require.NoError(t, err)
		first := runs[0]
		name := first.Name + " " + first.outputs[0].id.String()
		was := b.want[name]
		b.want[name] = checksum{was[0] ^ 1, was[1]}
		assert.ErrorContains(t, b.Verify(ctx, p.String(), point), first.outputs[0].id.String()+" has other bits", p.String())
		b.want[name] = was
		require.NoError(t, b.Verify(ctx, p.String(), point))
	}
	flip := func(of moe.Tensor, bit uint16) {
		bits := make([]uint16, 1)
		require.NoError(t, b.trial.Stream().CopyToHost(num.Bytes(bits), of.Ptr))
		bits[0] ^= bit
		require.NoError(t, b.trial.Stream().CopyToDevice(of.Ptr, num.Bytes(bits)))
	}
	for name, of := range map[string]moe.Tensor{"X": b.trial.Args.X, "W1": b.trial.Args.W1, "DO": b.trial.Back.DO, "H": b.trial.Args.H} {
		flip(of, 1)
		assert.ErrorContains(t, b.sameInputs(), "changed "+name)
		flip(of, 1)
		require.NoError(t, b.sameInputs())
	}
	flip(b.trial.Args.W2, 1<<14) // flips a bit of the exponent
	assert.ErrorContains(t, b.Verify(ctx, "down", choice[spec.ProductDown]), "O has other bits")
}

// TestFingerprint checks that a checksum changes with any bit and with the order of
// the words.
func TestFingerprint(t *testing.T) {
	dev := newDevice(t)
	s, err := dev.NewStream()
	require.NoError(t, err)
	defer s.Close()
	sums, err := dev.Alloc(checksumBytes)
	require.NoError(t, err)
	f, err := newFingerprinter(context.Background(), dev, nil, s, sums)
	require.NoError(t, err)
	const words = 3000 // some threads handle several words
	p, err := dev.Alloc(4 * words)
	require.NoError(t, err)
	data := make([]uint32, words)
	for i := range data {
		data[i] = uint32(i * i)
	}
	of := func() checksum {
		require.NoError(t, s.CopyToDevice(p, num.Bytes(data)))
		got, err := f.sum(moe.Tensor{Ptr: p, Shape: moe.TensorAt(p, moe.F32, words, 1).Shape})
		require.NoError(t, err)
		return got
	}
	first := of()
	assert.Equal(t, first, of())
	seen := map[checksum]bool{first: true}
	for _, at := range []int{0, 1, 1023, 1024, words - 1} {
		for _, bit := range []int{0, 31} {
			data[at] ^= 1 << bit
			got := of()
			assert.False(t, seen[got], "word %d bit %d", at, bit)
			seen[got] = true
			data[at] ^= 1 << bit
		}
	}
	data[5], data[6] = data[6], data[5]
	assert.False(t, seen[of()], "swapped words")
}

// unswizzled is a device that can remove the swizzle from tensor maps. The data of tiles then
// arrive in an order that the kernels do not expect.
type unswizzled struct {
	gpu.Device
	on bool
}

func (u *unswizzled) EncodeTensorMap(m gpu.TensorMap) (gpu.EncodedTensorMap, error) {
	if u.on {
		m.Swizzle = gpu.SwizzleNone
	}
	return u.Device.EncodeTensorMap(m)
}

// TestWrongSwizzle checks, for each product, that Verify finds a layer whose tiles have the wrong
// swizzle, and that this does not affect the next candidate.
func TestWrongSwizzle(t *testing.T) {
	dev := &unswizzled{Device: newDevice(t)}
	t.Cleanup(func() { jit.Forget(dev) })
	b, err := openBench(t, dev, task{Config: small, Backward: true})
	require.NoError(t, err)
	defer b.Close()
	ctx, choice := t.Context(), kernel.Choose(small, dev.Target())
	for i, p := range kernel.Kernels.Products() {
		if i%2 == 1 && testing.Short() {
			continue // tries half of the products of each pass
		}
		points := p.Candidates(small, dev.Target())
		wrong, right := points[0], points[1]
		dev.on = true
		assert.ErrorContains(t, b.Verify(ctx, p.String(), wrong), "has other bits", "%v %v", p, wrong)
		dev.on = false
		require.NoError(t, b.Verify(ctx, p.String(), choice[p.ID]), "the default makes good what was spoilt")
		assert.NoError(t, b.Verify(ctx, p.String(), right), "%v %v", p, right)
	}
}

// TestShownBy checks that the field ShownBy of a kernel determines its run. It also checks that a
// pass without outputs, or with an output that the pass does not have, is an error.
func TestShownBy(t *testing.T) {
	b, err := openBench(t, newDevice(t), task{Config: small, Histogram: []int64{10, 0, 1, 5}})
	require.NoError(t, err)
	defer b.Close()
	row := &registry.Kernel[struct{}]{KernelName: "other", Of: kernel.UpProduct, ShownBy: registry.Training}
	b.kernels = registry.Registry{row}
	runs, err := b.runs(spec.ProductUp)
	require.NoError(t, err)
	require.Len(t, runs, 1)
	require.Equal(t, "other", runs[0].kernel)
	require.Equal(t, []named{{spec.TensorO, b.trial.Args.O}, {spec.TensorH, b.trial.Args.H}}, runs[0].outputs, "scores are inputs here")
	_, err = b.checksums(t.Context(), b.base, runs[0])
	require.NoError(t, err)

	row.ShownBy = registry.Pass{Name: "sideways", Outputs: []spec.TensorID{spec.TensorA}}
	_, err = b.runs(spec.ProductUp)
	require.EqualError(t, err, `the pass that shows the work of the kernel "other": "sideways" has no output "A"`)
	row.ShownBy = registry.Pass{}
	_, err = b.runs(spec.ProductUp)
	require.ErrorContains(t, err, "has no outputs")
	require.ErrorContains(t, b.Verify(t.Context(), "tanh", gemm.Tiling{}), "product is tanh, must be one of [up ")
}
