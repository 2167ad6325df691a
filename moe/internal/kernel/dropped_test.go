package kernel

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver/gpu"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/ptx"
	"sonicmoe/ptx/emu"
)

// orders are the prefixes of the instructions that order other instructions.
var orders = []string{"bar.", "cp.async.wait", "cp.async.bulk.wait", "cp.async.mbarrier", "cp.async.commit", "cp.async.bulk.commit", "fence.", "mbarrier.init", "mbarrier.arrive",
	"mbarrier.try_wait", "wgmma.fence", "wgmma.commit", "wgmma.wait", "barrier.cluster"}

// needless has the number of ordering instructions of the up-projection, by opcode, that can be
// removed at this size without an error. The epilogue's first sub-tile already waits for both store
// buffers, so the second sub-tile needs neither its wait nor the barrier after it. The order of the
// two math warpgroups, a bar.sync and a bar.arrive, matters only for speed. The gathering warps
// read the queue one tile ahead and then arrive on the tile's stages. Math waits for these stages
// before it releases the queue's item, and this wait already orders the reads of the queue.
var needless = map[string]int{"cp.async.bulk.wait_group": 1, "bar.sync": 2, "bar.arrive": 1, "bar.warp.sync": 2}

// TestDroppedLinesOfUp removes the ordering instructions of the up-projection, one at a time, and
// checks that the emulator reports each removal, except for the number in needless.
func TestDroppedLinesOfUp(t *testing.T) {
	if drivertest.Name() != "emulated" {
		t.Skip("a GPU would hang for ever")
	}
	if testing.Short() {
		t.Skip("58 checks of a kernel: not with -short")
	}
	build := func() *jit.Kernel[UpArgs] {
		k, err := Up{Config: spec.Config{Hidden: 320, Intermediate: 128, NumExperts: 4}, SaveH: true, Tiling: kt.Shallow(128)}.Build()
		require.NoError(t, err)
		return k
	}
	whole := build()
	body := whole.Module.Entry(whole.Name).Body
	named, kinds, passed := 0, map[string]int{}, map[string]int{}
	require.NoError(t, runUp(t, kt.NewToCheck(t, 1), whole))
	for i, in := range body {
		if in.Form == nil || !slices.ContainsFunc(orders, func(s string) bool { return strings.HasPrefix(in.Form.Op, s) }) {
			continue
		}
		k := build()
		e := k.Module.Entry(k.Name)
		e.Body = slices.Delete(e.Body, i, i+1)
		err := runUp(t, kt.NewToCheck(t, 1), k)
		var f *emu.Fault
		if !errors.As(err, &f) {
			require.NoError(t, err)
			passed[in.Form.Op]++
			t.Logf("%s without %s passes", in.Pos(), in.Form.Op)
			continue
		}
		named++
		kinds[f.Kind.String()]++
	}
	t.Logf("%d named: %v", named, kinds)
	assert.Equal(t, needless, passed)
	assert.GreaterOrEqual(t, named, 50)
}

// TestRowTails checks that products with biases set the bytes after a bias's row to 0, because they
// also read these bytes. It also removes the store that sets them, and expects the emulator's check
// to report the read. (The proxy fence after the stores may be missing without a report, because
// the thread that publishes tiles has a fence before each product.)
func TestRowTails(t *testing.T) {
	if drivertest.Name() != "emulated" {
		t.Skip("a GPU looks for no races")
	}
	const d, n = 320, 64
	tiling := kt.Shallow(128)
	tiling.ClusterM = 2 // with an odd number of columns of tiles, one CTA of a cluster has no tile
	p, normal := kt.Small(), reference.NewNormal(3, 1)
	run := func(drop bool) error {
		k, err := Up{Config: spec.Config{Hidden: d, Intermediate: n, NumExperts: len(p.Rows), Bias: true}, SaveH: true, Tiling: tiling}.Build()
		require.NoError(t, err)
		if drop {
			e := k.Module.Entry(k.Name)
			at := slices.IndexFunc(e.Body, func(in ptx.Inst) bool {
				return in.Form != nil && strings.HasPrefix(in.Form.Op, "st.shared") && strings.HasPrefix(in.Pos().String(), "gemm/product.go")
			})
			require.GreaterOrEqual(t, at, 0)
			e.Body = slices.Delete(e.Body, at, at+1)
		}
		b := kt.NewToCheck(t, 1)
		fn, err := jit.Of(b.Device).Load(t.Context(), nil, k.Source(t.Name()), gpu.CompileOptions{})
		require.NoError(t, err)
		args := UpArgs{X: kt.Upload(b, normal.Values(int64(p.Tokens*d))), Gather: kt.Upload(b, p.Gather), W1: kt.Upload(b, normal.Values(int64(len(p.Rows)*2*n*d))),
			B1: kt.Upload(b, normal.Values(int64(len(p.Rows)*2*n))), A: b.Room(2 * len(p.Expert) * n), H: b.Room(4 * len(p.Expert) * n), Rows: len(p.Expert), TileArgs: p.Tiles(b)}
		err = k.Launcher(fn).LaunchGrid(b.Stream, args, gpu.Dim3{X: 2})
		if err == nil {
			err = b.Stream.Synchronize(t.Context())
		}
		return err
	}
	require.NoError(t, run(false))
	var f *emu.Fault
	require.ErrorAs(t, run(true), &f)
	assert.Equal(t, emu.UninitializedShared, f.Kind)
}
