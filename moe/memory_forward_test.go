package moe_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/faulty"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// TestWorkspaceBound checks that the workspace of known layers is at most Y plus three times A,
// plus 2 %. The part that does not grow with the tokens has a separate bound.
func TestWorkspaceBound(t *testing.T) {
	const sms = 132
	for _, row := range peers.All() {
		c := row.Config
		s := moe.SizesOn(c, sms, row.Tokens)
		rows := int64(row.Tokens) * int64(c.TopK)
		bound := 2*rows*int64(c.Hidden) + 6*rows*int64(c.Intermediate)
		grows := s.Workspace - s.Fixed
		t.Logf("%-16s workspace %7.1f MiB, of which fixed %4.0f KiB; %5.1f %% of 2·R·d + 6·R·n",
			row.Name, float64(s.Workspace)/(1<<20), float64(s.Fixed)/(1<<10), 100*float64(grows)/float64(bound))
		assert.LessOrEqual(t, grows, bound+bound/50, row.Name)
		assert.LessOrEqual(t, s.Fixed, int64(1<<20), row.Name)
		assert.Equal(t, s.Fixed, moe.SizesOn(c, sms, 0).Workspace, "nothing else is left without tokens")
		assert.Equal(t, s.Fixed, moe.SizesOn(c, sms, 1).Fixed)

		shapes := c.Shapes(row.Tokens)
		assert.Equal(t, shapes.H.Bytes(), s.H)
		assert.Equal(t, 4*rows*int64(c.Intermediate), s.H)
		assert.Equal(t, 2*int64(row.Tokens)*int64(c.Hidden), s.O)
		assert.Equal(t, 4*rows, s.Scores)
		assert.Equal(t, 4*rows, s.ExpertIDs)
	}
}

// guard is the value of the bytes around each buffer. guardBytes is their least number on each
// side.
const (
	guard      = 0xA5
	guardBytes = 512
)

// arena is one piece of device memory with buffers of exact sizes and guard bytes
// everywhere else.
type arena struct {
	base, next driver.DevicePtr
	bytes      int64
	used       [][2]driver.DevicePtr // the first and last address of each buffer
}

// newArena returns an arena for up to 8 buffers, which have size bytes together.
func newArena(t *testing.T, s driver.Stream, size int64) *arena {
	bytesInAll := size + 8*(guardBytes+256)
	base, err := testDevice(t).Alloc(bytesInAll)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, testDevice(t).Free(base)) })
	require.NoError(t, s.CopyToDevice(base, bytes.Repeat([]byte{guard}, int(bytesInAll))))
	return &arena{base: base, next: base, bytes: bytesInAll}
}

// take returns the address of a buffer with guard bytes on both sides.
func (a *arena) take(bytes int64) driver.DevicePtr {
	p := (a.next + guardBytes + 255) &^ 255
	a.next = p + driver.DevicePtr(bytes)
	a.used = append(a.used, [2]driver.DevicePtr{p, a.next})
	return p
}

// check fails if a byte outside of the buffers has changed.
func (a *arena) check(t *testing.T, s driver.Stream) {
	t.Helper()
	all := make([]byte, a.bytes)
	require.NoError(t, s.CopyToHost(all, a.base))
	from := a.base
	for i, u := range append(a.used, [2]driver.DevicePtr{a.base + driver.DevicePtr(a.bytes), 0}) {
		between := all[from-a.base : u[0]-a.base]
		for j, b := range between {
			if b != guard {
				t.Fatalf("guard byte %d of %d before buffer %d is %#x: something was written outside", j, len(between), i, b)
			}
		}
		from = u[1]
	}
}

// TestExactSizes checks that the sizes of Sizes are large enough: with guard bytes around every
// buffer, the bits are right and the guards unchanged. A pass must refuse a workspace that is one
// byte smaller.
func TestExactSizes(t *testing.T) {
	for i, c := range []struct {
		tokens int
		config moe.Config
	}{
		{1, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 1, TopK: 1}},
		{37, moe.Config{Hidden: 192, Intermediate: 128, NumExperts: 5, TopK: 3, GateUp: spec.Interleaved}},
		{129, moe.Config{Hidden: 128, Intermediate: 192, NumExperts: 2, TopK: 2}},
		{3, moe.Config{Hidden: 192, Intermediate: 64, NumExperts: 20, TopK: 7, Logits: moe.F32}},
		{261, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 1, TopK: 1}},
		{1, moe.Config{Hidden: 144, Intermediate: 80, NumExperts: 4, TopK: 2}},
		{40, moe.Config{Hidden: 80, Intermediate: 48, NumExperts: 4, TopK: 2, GateUp: spec.Interleaved}},
		{150, moe.Config{Hidden: 208, Intermediate: 16, NumExperts: 1, TopK: 1, InOut: true}},
	} {
		if testing.Short() && i%3 != 1 {
			continue
		}
		t.Run(fmt.Sprintf("%d %v", c.tokens, c.config), func(t *testing.T) {
			ctx := limited(t, time.Minute)
			tr := newTrial(t, c.config, c.tokens, 6, moe.WithoutBackward())
			want, err := digest(ctx, tr, tr.Stream(), tr.Args)
			require.NoError(t, err)
			a := guarded(t, tr)
			got, err := digest(ctx, tr, tr.Stream(), tr.Args)
			require.NoError(t, err)
			require.Equal(t, want, got, "bits in exact buffers")
			a.check(t, tr.Stream())
			require.NoError(t, tr.Run(ctx, tr.Inference()))
			a.check(t, tr.Stream())
			require.NoError(t, tr.Call().ForwardExperts(tr.Stream(), tr.Args))
			require.NoError(t, tr.Stream().Synchronize(ctx))
			a.check(t, tr.Stream())

			f := tr.Args
			f.Workspace.Bytes--
			var arg *moe.ArgError
			require.ErrorAs(t, tr.Call().Forward(tr.Stream(), f), &arg)
			assert.Equal(t, "Workspace", arg.Field)
		})
	}
}

// guarded moves a trial's outputs and workspace into an arena, with exactly the sizes of Sizes.
func guarded(t *testing.T, tr *trial.Trial) *arena {
	s := sizesOf(t, tr.Layer, tr.Tokens)
	a := newArena(t, tr.Stream(), s.O+s.H+s.Scores+s.ExpertIDs+s.Workspace)
	tr.Args.O.Ptr, tr.Args.H.Ptr = a.take(s.O), a.take(s.H)
	tr.Args.Workspace = moe.Buffer{Ptr: a.take(s.Workspace), Bytes: s.Workspace}
	tr.Args.Scores.Ptr, tr.Args.ExpertIDs.Ptr = a.take(s.Scores), a.take(s.ExpertIDs)
	return a
}

// TestForwardAllocatesNothing checks that Forward allocates no host memory.
func TestForwardAllocatesNothing(t *testing.T) {
	dev, tr := faultyTrial(t, testDevice(t), moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 8, TopK: 2}, 24, moe.WithoutBackward())
	defer tr.Close()
	dev.Discard(true)
	for name, run := range map[string]func(){
		"training":  func() { require.NoError(t, tr.Call().Forward(tr.Stream(), tr.Args)) },
		"inference": func() { require.NoError(t, tr.Call().Forward(tr.Stream(), tr.Inference())) },
		"route":     func() { require.NoError(t, tr.Call().Route(tr.Stream(), tr.Args)) },
		"experts":   func() { require.NoError(t, tr.Call().ForwardExperts(tr.Stream(), tr.Args)) },
	} {
		assert.Zero(t, testing.AllocsPerRun(100, run), name) // AllocsPerRun calls run once before it counts
	}
	before := dev.Count(faulty.EncodeTensorMap)
	require.NoError(t, tr.Call().Forward(tr.Stream(), tr.Args))
	assert.Equal(t, before, dev.Count(faulty.EncodeTensorMap), "maps of the same buffers are not encoded again")
}
