package moe_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
)

// rowNames are the full-size rows to run, from SONICMOE_ROWS: names separated
// by commas, "slice" for those of the first slice, or "all". Only a GPU is up to it.
func rowNames(t testing.TB) []string {
	list := os.Getenv("SONICMOE_ROWS")
	if list == "" {
		t.Skip("full-size rows are opt-in: set SONICMOE_ROWS to row names, slice or all, with SONICMOE_DEVICE=cuda")
	}
	if list == "slice" {
		return []string{"7B n=256", "30B n=1024", "120B n=2048", "Qwen3-30B-A3B"}
	}
	if list == "all" {
		var names []string
		for _, r := range peers.All() {
			names = append(names, r.Name)
		}
		return names
	}
	return strings.Split(list, ",")
}

// TestRows compares full-size layers with the reference, and checks that repeated
// passes, graphs and other tilings give the same bits.
func TestRows(t *testing.T) {
	for _, name := range rowNames(t) {
		t.Run(name, func(t *testing.T) {
			row, ok := peers.Find(name)
			require.True(t, ok, "no row of that name")
			ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
			defer cancel()
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
			time20(t, tr, row)
			timeInSequence(t, tr, moe.ForwardKernels)
			timeEach(t, tr)
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
	require.NoError(t, s.BeginCapture())
	require.NoError(t, tr.Call().Forward(s, tr.Args))
	g, err := s.EndCapture()
	require.NoError(t, err)
	defer g.Close()
	require.NoError(t, tr.Poison())
	require.NoError(t, g.Launch(s))
	require.NoError(t, s.Synchronize(ctx))
	same(t, tr, want, "a graph replay")
	ms := median(t, s, 200*time.Millisecond, 20, func() error { return g.Launch(s) })
	t.Logf("as a graph %.3f ms (min %.3f max %.3f)", ms[1], ms[0], ms[2])
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

// otherWidths returns a layer's tilings with other widths for some products.
func otherWidths(t *testing.T, l *moe.Layer, target driver.Target, products ...*registry.Product) tiles.Choice {
	choice, err := tiles.Parse(l.Tilings())
	require.NoError(t, err)
	for _, p := range products {
		for _, q := range p.Space(target) {
			if q.TileN != choice[p.Name].TileN {
				choice[p.Name] = q
				break
			}
		}
	}
	return choice
}

// time20 logs the pass's speed: the median of repeats after warming up.
func time20(t *testing.T, tr *trial.Trial, row peers.Row) {
	ms := median(t, tr.Stream(), 200*time.Millisecond, 20, func() error { return tr.Call().Forward(tr.Stream(), tr.Args) })
	t.Logf("%s: %v: %.3f ms (min %.3f max %.3f), %.0f TFLOPS; SonicMoE %.3f ms", row.Name, tr.Layer.Tilings(),
		ms[1], ms[0], ms[2], row.Config.ForwardFLOPs(row.Tokens)/ms[1]/1e9, row.SonicForwardMS)
}

// timeInSequence logs the time of each kernel between events in whole passes.
func timeInSequence(t *testing.T, tr *trial.Trial, kernels []registry.Any) {
	dev, s := testDevice(t), tr.Stream()
	const rounds = 20
	times := map[string][]float64{}
	for range rounds {
		var names []string
		var events []driver.Event
		mark := func(name string) {
			e, err := dev.NewEvent()
			require.NoError(t, err)
			require.NoError(t, e.Record(s))
			events, names = append(events, e), append(names, name)
		}
		mark("")
		for _, k := range kernels {
			ran, err := tr.Call().RunInSequence(k, s)
			require.NoError(t, err)
			if ran {
				mark(k.Name())
			}
		}
		require.NoError(t, s.Synchronize(context.Background()))
		for i := 1; i < len(events); i++ {
			d, err := events[i].Since(events[i-1])
			require.NoError(t, err)
			times[names[i]] = append(times[names[i]], float64(d)/1e6)
		}
		for _, e := range events {
			require.NoError(t, e.Close())
		}
	}
	for _, k := range kernels {
		if ms := times[k.Name()]; len(ms) > 0 {
			slices.Sort(ms)
			t.Logf("%-14s %.4f ms in sequence", k.Name(), ms[len(ms)/2])
		}
	}
}

// timeEach logs the time of each kernel by itself.
func timeEach(t *testing.T, tr *trial.Trial) {
	for _, k := range append(moe.ForwardKernels, moe.BackwardKernels...) {
		if ran, err := tr.Call().RunKernel(k, tr.Stream(), tr.Args); !ran {
			require.NoError(t, err)
			continue
		}
		ms := median(t, tr.Stream(), 20*time.Millisecond, 20, func() error {
			_, err := tr.Call().RunKernel(k, tr.Stream(), tr.Args)
			return err
		})
		t.Logf("%-14s %.4f ms (min %.4f max %.4f)", k.Name(), ms[1], ms[0], ms[2])
	}
}

// median gives min, median and max milliseconds of a queued piece of work.
func median(t testing.TB, s driver.Stream, warm time.Duration, repeats int, work func() error) [3]float64 {
	m, err := trial.Measure(context.Background(), testDevice(t), s, warm, repeats, work)
	require.NoError(t, err)
	return [3]float64{float64(m.Fastest) / 1e6, float64(m.Median) / 1e6, float64(m.Slowest) / 1e6}
}
