package moe_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/kernel/dh"
	"sonicmoe/moe/internal/kernel/dw"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
)

// fullSize names the full-size layers for the tests in this file and for TestListsAtFullSize. Only
// a GPU runs them in reasonable time.
var fullSize = flag.String("rows", "", "full-size `layers` to test, on a GPU: names with commas, slice, or all")

// rows returns the layers of the flag -rows. Without it, the test is skipped.
func rows(t testing.TB) []peers.Row {
	if *fullSize == "" {
		t.Skip("full-size layers are tested with -rows, on a GPU")
	}
	list, err := peers.Select(*fullSize)
	require.NoError(t, err)
	return list
}

// TestRows compares full-size layers with the reference, and checks that repeated
// passes, graphs and other tilings give the same bits.
func TestRows(t *testing.T) {
	for _, row := range rows(t) {
		t.Run(row.Name, func(t *testing.T) {
			ctx := limited(t, 4*time.Minute)
			tr := newTrial(t, row.Config, row.Tokens, 1)
			require.NoError(t, tr.Run(ctx, tr.Args))
			first, err := tr.Results(true)
			require.NoError(t, err)
			rep, err := tr.Check(first, 256)
			require.NoError(t, err)
			t.Logf("%d tokens, score %.2g\nO %v\nH %v", rep.Sampled, rep.Score, rep.O, rep.H)
			require.NoError(t, rep.Check())

			for range 20 {
				require.NoError(t, tr.Run(ctx, tr.Args))
				same(t, tr, first, "a repeat")
			}
			replay(t, ctx, tr, first)
			otherTiles(t, ctx, tr, first)
		})
	}
}

func same(t *testing.T, tr *trial.Trial, want trial.Results, what string) {
	got, err := tr.Results(false)
	require.NoError(t, err)
	require.True(t, slices.Equal(want.O, got.O), "%s gives other bits", what)
	require.True(t, slices.Equal(want.ExpertIDs, got.ExpertIDs), "%s routes otherwise", what)
}

// replay captures the pass, then replays it on poisoned outputs.
func replay(t *testing.T, ctx context.Context, tr *trial.Trial, want trial.Results) {
	s := tr.Stream()
	g := capture(t, s, func() error { return tr.Call().Forward(s, tr.Args) })
	defer g.Close()
	require.NoError(t, tr.Poison())
	require.NoError(t, g.Launch(s))
	require.NoError(t, s.Synchronize(ctx))
	same(t, tr, want, "a graph replay")
}

func otherTiles(t *testing.T, ctx context.Context, tr *trial.Trial, want trial.Results) {
	c, target := tr.Layer.Config(), testDevice(t).Target()
	choice := otherWidths(t, tr.Layer, target, kernel.UpProduct, kernel.DownProduct)
	l := newLayer(t, testDevice(t), c, moe.WithTilings(choice.Text()))
	require.NoError(t, tr.Poison())
	require.NoError(t, l.NewCall().Forward(tr.Stream(), tr.Args))
	require.NoError(t, tr.Stream().Synchronize(ctx))
	same(t, tr, want, fmt.Sprintf("other tiles: %v", choice))
}

// otherWidths returns a layer's tilings, with other widths for the given products.
func otherWidths(t *testing.T, l *moe.Layer, target driver.Target, products ...*registry.Product) tiles.Choice {
	choice, err := tiles.Parse(l.Tilings())
	require.NoError(t, err)
	for _, p := range products {
		for _, q := range p.Space(target) {
			if q.TileN != choice[p.ID].TileN {
				choice[p.ID] = q
				break
			}
		}
	}
	return choice
}

// TestBackwardRows compares the gradients of full-size layers with the reference, and
// checks that repeated passes and other tilings give the same bits.
func TestBackwardRows(t *testing.T) {
	for _, row := range rows(t) {
		t.Run(row.Name, func(t *testing.T) {
			ctx := limited(t, 4*time.Minute)
			tr := newTrial(t, row.Config, row.Tokens, 1)
			require.NoError(t, tr.Run(ctx, tr.Args))
			require.NoError(t, tr.PrepareBackward(17, moe.BF16))
			require.NoError(t, tr.RunBackward(ctx, tr.Back))
			saved, err := tr.Results(true)
			require.NoError(t, err)
			rep, err := tr.CheckBackward(tr.Back, saved, trial.BackwardCheck{Routed: true, Tokens: 256, Rows: 256})
			require.NoError(t, err)
			t.Log(rep)
			require.NoError(t, rep.Check())

			first := samples(t, tr, tr.Back)
			for range 5 {
				require.NoError(t, tr.RunBackward(ctx, tr.Back))
				sameGradients(t, first, samples(t, tr, tr.Back), "a repeat gives other bits")
			}
			otherBackwardTiles(t, ctx, tr, first)
		})
	}
}

// sampleBlocks is the number of pieces of a large gradient that are compared.
const sampleBlocks = 256

// samples returns the bits of all gradients. It takes evenly spaced pieces of large weight
// gradients.
func samples(t *testing.T, tr *trial.Trial, b moe.BackwardArgs) map[string]trial.Values {
	t.Helper()
	all := map[string]trial.Values{}
	for name, of := range wanted(&b) {
		cols, rows := 64*tr.Layer.Config().Hidden, []int64(nil)
		if blocks := of.Shape.Elements() / int64(cols); of.Shape.Rank == 3 && blocks > sampleBlocks {
			for i := range int64(sampleBlocks) {
				rows = append(rows, i*(blocks-1)/(sampleBlocks-1))
			}
		}
		v, err := tr.Rows(*of, cols, rows)
		require.NoError(t, err)
		all[name] = v
	}
	return all
}

// otherBackwardTiles runs the pass with tilings of another width, and checks that the gradients
// have the same bits.
func otherBackwardTiles(t *testing.T, ctx context.Context, tr *trial.Trial, want map[string]trial.Values) {
	c, target := tr.Layer.Config(), testDevice(t).Target()
	choice := otherWidths(t, tr.Layer, target, dh.Product, kernel.DXProduct, dw.W1Product, dw.W2Product)
	l := newLayer(t, testDevice(t), c, moe.WithTilings(choice.Text()))
	require.NoError(t, tr.PoisonGradients(tr.Back))
	require.NoError(t, l.NewCall().Backward(tr.Stream(), tr.Back))
	require.NoError(t, tr.Stream().Synchronize(ctx))
	sameGradients(t, want, samples(t, tr, tr.Back), "%v gives other bits", choice)
}

// TestBackwardMemory checks that each layer keeps no more device memory between forward and
// backward than promised, and that four layers share one workspace, which the test poisons between
// the passes. The device allocates memory in pieces of 2 MiB.
func TestBackwardMemory(t *testing.T) {
	rows(t)
	list, err := peers.Select("7B n=256,7B n=512,7B n=1024")
	require.NoError(t, err)
	for _, row := range list {
		t.Run(row.Name, func(t *testing.T) { testLayersMemory(t, row) })
	}
}

// keep returns the buffers of a pass, with new memory for the tensors that a layer saves.
func keep(t *testing.T, tr *trial.Trial) moe.ForwardArgs {
	f := tr.Args
	for _, of := range []*moe.Tensor{&f.X, &f.H, &f.Scores, &f.ExpertIDs} {
		p, err := testDevice(t).Alloc(of.Shape.Bytes())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, testDevice(t).Free(p)) })
		of.Ptr = p
	}
	return f
}

func testLayersMemory(t *testing.T, row peers.Row) {
	ctx := limited(t, 2*time.Minute)
	dev := testDevice(t)
	tr := newTrial(t, row.Config, row.Tokens, 1)
	require.NoError(t, tr.PrepareBackward(17, moe.BF16))
	s, b := tr.Stream(), tr.Back
	tr.Args.Workspace = b.Workspace
	var passes []moe.ForwardArgs
	promise := row.Config.SavedBytes(row.Tokens)
	for layer := range 4 {
		before, _, err := dev.Memory()
		require.NoError(t, err)
		f := keep(t, tr)
		bits := reference.NewNormal(uint64(90+layer), reference.ScaleX).Values(f.X.Shape.Elements())
		require.NoError(t, s.CopyToDevice(f.X.Ptr, num.Bytes(bits)))
		require.NoError(t, tr.Call().Forward(s, f))
		require.NoError(t, s.Fill32(b.Workspace.Ptr, 0xffffffff, b.Workspace.Bytes/4))
		require.NoError(t, s.Synchronize(ctx))
		after, _, err := dev.Memory()
		require.NoError(t, err)
		t.Logf("layer %d: %d bytes, %d were promised", layer, before-after, promise)
		const piece = 2 << 20
		require.InDelta(t, promise, before-after, 4*piece)
		passes = append(passes, f)
	}
	before, _, err := dev.Memory()
	require.NoError(t, err)
	for i := len(passes) - 1; i >= 0; i-- {
		f := passes[i]
		b.X, b.H, b.Scores, b.ExpertIDs = f.X, f.H, f.Scores, f.ExpertIDs
		require.NoError(t, tr.RunBackward(ctx, b))
		tr.X = make([]uint16, f.X.Shape.Elements())
		require.NoError(t, s.CopyToHost(num.Bytes(tr.X), f.X.Ptr))
		tr.Args.H, tr.Args.Scores, tr.Args.ExpertIDs = f.H, f.Scores, f.ExpertIDs
		saved, err := tr.Results(true)
		require.NoError(t, err)
		rep, err := tr.CheckBackward(b, saved, trial.BackwardCheck{Routed: true, Tokens: 32, Rows: 32})
		require.NoError(t, err)
		require.NoError(t, rep.Check(), "layer %d", i)
	}
	after, _, err := dev.Memory()
	require.NoError(t, err)
	require.Equal(t, before, after, "backward took memory")
}
