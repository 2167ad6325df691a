package moe_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx/emu"
)

// TestBitsOfEachKernel gives each kernel the same inputs on two devices. One is the device under
// test: a GPU, or the emulator whose asynchronous work completes early. The other is an emulator
// whose asynchronous work completes at random times. All bits must agree, except in results of
// approximate functions: scores must agree within 1e-5, and A within one step of bf16.
func TestBitsOfEachKernel(t *testing.T) {
	for i, c := range []struct {
		tokens int
		config moe.Config
	}{
		{150, moe.Config{Hidden: 256, Intermediate: 192, NumExperts: 12, TopK: 4}},
		{300, moe.Config{Hidden: 192, Intermediate: 64, NumExperts: 60, TopK: 6, GateUp: spec.Interleaved}},
		{65, moe.Config{Hidden: 128, Intermediate: 256, NumExperts: 2, TopK: 2}},
	} {
		if i > 0 && testing.Short() {
			break
		}
		t.Run(fmt.Sprintf("%d %v", c.tokens, c.config), func(t *testing.T) {
			ctx := testContext(t)
			other, err := emulated.New(emulated.Options{Timing: emu.Random, Seed: 7})
			require.NoError(t, err)
			b := bitsBench{t: t, a: newTrial(t, c.config, c.tokens, 6, moe.WithoutDecode(), moe.WithoutBackward())}
			l, err := moe.New(ctx, other, c.config, moe.WithoutCache(), moe.WithoutDecode(), moe.WithoutBackward())
			require.NoError(t, err)
			b.b, err = trial.FromHost(other, l, c.tokens, b.a.X, b.a.Weights)
			require.NoError(t, err)
			require.NoError(t, b.a.Run(ctx, b.a.Args))
			require.NoError(t, b.b.Run(ctx, b.b.Args))
			b.router()
			b.plan()
			b.products()
		})
	}
}

// bitsBench has the same layer and inputs on two devices. Both have run one pass.
type bitsBench struct {
	t    *testing.T
	a, b *trial.Trial
}

func (b bitsBench) router() {
	ra, err := b.a.Results(false)
	require.NoError(b.t, err)
	rb, err := b.b.Results(false)
	require.NoError(b.t, err)
	require.Equal(b.t, rb.ExpertIDs, ra.ExpertIDs, "chosen experts")
	for i, s := range ra.Scores {
		require.InEpsilon(b.t, rb.Scores[i], s, 1e-5, "score %d", i)
	}
	// The second device now gets the scores of the first.
	require.NoError(b.t, b.b.Stream().CopyToDevice(b.b.Args.Scores.Ptr, num.Bytes(ra.Scores)))
	f := b.b.Args
	require.NoError(b.t, b.b.Call().ForwardExperts(b.b.Stream(), f))
}

// place returns the address and the size of a region of the forward or backward workspace.
func (b bitsBench) place(tr *trial.Trial, name string) (driver.DevicePtr, int64) {
	if r, ok := tr.Layer.Regions(tr.Tokens)[name]; ok {
		return tr.Args.Workspace.Ptr + driver.DevicePtr(r[0]), r[1]
	}
	r, ok := tr.Layer.BackwardRegions(tr.Tokens)[name]
	require.True(b.t, ok, name)
	return tr.Back.Workspace.Ptr + driver.DevicePtr(r[0]), r[1]
}

// region reads a region of a workspace.
func (b bitsBench) region(tr *trial.Trial, name string) []byte {
	from, bytes := b.place(tr, name)
	buf := make([]byte, bytes)
	require.NoError(b.t, tr.Stream().CopyToHost(buf, from))
	return buf
}

// give copies a region of the first device's workspace to the second's.
func (b bitsBench) give(name string) {
	to, _ := b.place(b.b, name)
	require.NoError(b.t, b.b.Stream().CopyToDevice(to, b.region(b.a, name)))
}

func (b bitsBench) run(k registry.Any) {
	ran, err := b.b.Call().RunKernel(k, b.b.Stream(), b.b.Args)
	require.NoError(b.t, err)
	require.True(b.t, ran)
}

func (b bitsBench) plan() {
	for _, name := range []string{"offsets", "blocks", "gather", "inverse"} {
		require.Equal(b.t, b.region(b.b, name), b.region(b.a, name), name)
	}
	n := schedule.PairBytes * int(binary.LittleEndian.Uint32(b.region(b.a, "blocks")))
	require.Equal(b.t, b.region(b.b, "table")[:n], b.region(b.a, "table")[:n], "table of row pairs")
}

func (b bitsBench) products() {
	ra, err := b.a.Results(true)
	require.NoError(b.t, err)
	rb, err := b.b.Results(true)
	require.NoError(b.t, err)
	require.Equal(b.t, rb.H, ra.H, "H")
	a, other := b.region(b.a, "A"), b.region(b.b, "A")
	for i := 0; i < len(a); i += 2 {
		x, y := binary.LittleEndian.Uint16(a[i:]), binary.LittleEndian.Uint16(other[i:])
		if x != y {
			fx, fy := num.BF16ToFloat64(x), num.BF16ToFloat64(y)
			require.LessOrEqual(b.t, math.Abs(fx-fy), math.Abs(fy)/128, "A element %d: %g and %g", i/2, fx, fy)
		}
	}
	b.give("A")
	b.run(kernel.DownKernel)
	require.Equal(b.t, b.region(b.b, "Y"), b.region(b.a, "Y"), "Y")
	b.give("Y")
	b.run(kernel.AggregateKernel)
	rb, err = b.b.Results(false)
	require.NoError(b.t, err)
	require.Equal(b.t, rb.O, ra.O, "O")
}
