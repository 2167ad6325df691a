package moe_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/kernel"
	"sonicmoe/moe/spec"
	"sonicmoe/moe/trial"
)

// rowNames are the full-size rows to run, from SONICMOE_ROWS: names separated
// by commas, or "slice" for those of the first slice. Only a GPU is up to it.
func rowNames(t testing.TB) []string {
	list := os.Getenv("SONICMOE_ROWS")
	if list == "" {
		t.Skip("full-size rows are opt-in: set SONICMOE_ROWS to row names, or slice, with SONICMOE_DEVICE=cuda")
	}
	if list == "slice" {
		return []string{"7B n=256", "30B n=1024", "120B n=2048", "Qwen3-30B-A3B"}
	}
	return strings.Split(list, ",")
}

// TestRows: full size against the reference, the same bits on repeats, from a
// graph and with other tiles.
func TestRows(t *testing.T) {
	for _, name := range rowNames(t) {
		t.Run(name, func(t *testing.T) {
			row, ok := spec.FindRow(name)
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
			timeEach(t, tr)
			otherTiles(t, ctx, tr, first)
		})
	}
}

func same(t *testing.T, tr *trial.Trial, want trial.Results, what string) {
	got, err := tr.Results(false)
	require.NoError(t, err)
	require.True(t, slices.Equal(want.O, got.O), "%s gives other bits", what)
	require.True(t, slices.Equal(want.Experts, got.Experts), "%s routes otherwise", what)
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
}

func otherTiles(t *testing.T, ctx context.Context, tr *trial.Trial, want trial.Results) {
	c, target := tr.Layer.Config(), testDevice(t).Target()
	choice := tr.Layer.Choice()
	for _, p := range kernel.UpSpace(target) {
		if p.TileN != choice.Up.TileN {
			choice.Up = p
			break
		}
	}
	for _, p := range kernel.DownSpace(target) {
		if p.TileN != choice.Down.TileN {
			choice.Down = p
			break
		}
	}
	l, err := moe.New(ctx, testDevice(t), c, moe.WithCache(nil), moe.WithChoice(choice))
	require.NoError(t, err)
	require.NoError(t, tr.Poison())
	require.NoError(t, l.NewCall().Forward(tr.Stream(), tr.Args))
	require.NoError(t, tr.Stream().Synchronize(ctx))
	same(t, tr, want, "another tile: up "+choice.Up.String()+", down "+choice.Down.String())
}

// time20 logs the pass's speed: the median of repeats after warming up.
func time20(t *testing.T, tr *trial.Trial, row spec.Row) {
	ms := median(t, tr.Stream(), 200*time.Millisecond, 20, func() error { return tr.Call().Forward(tr.Stream(), tr.Args) })
	t.Logf("%s: up %v down %v: %.3f ms (min %.3f max %.3f), %.0f TFLOPS; SonicMoE %.3f ms", row.Name, tr.Layer.Choice().Up, tr.Layer.Choice().Down,
		ms[1], ms[0], ms[2], row.Config.ForwardFLOPs(row.Tokens)/ms[1]/1e9, row.SonicForwardMS)
}

// timeEach logs the time of each kernel by itself.
func timeEach(t *testing.T, tr *trial.Trial) {
	for i, name := range moe.KernelNames {
		if ran, err := tr.Call().RunKernel(i, tr.Stream()); !ran {
			require.NoError(t, err)
			continue
		}
		ms := median(t, tr.Stream(), 20*time.Millisecond, 20, func() error {
			_, err := tr.Call().RunKernel(i, tr.Stream())
			return err
		})
		t.Logf("%-14s %.4f ms (min %.4f max %.4f)", name, ms[1], ms[0], ms[2])
	}
}

// median gives min, median and max milliseconds of a queued piece of work.
func median(t testing.TB, s driver.Stream, warm time.Duration, repeats int, work func() error) [3]float64 {
	dev := testDevice(t)
	for start := time.Now(); time.Since(start) < warm; {
		require.NoError(t, work())
		require.NoError(t, s.Synchronize(context.Background()))
	}
	events := make([]driver.Event, repeats+1)
	for i := range events {
		var err error
		events[i], err = dev.NewEvent()
		require.NoError(t, err)
		defer events[i].Close()
	}
	require.NoError(t, events[0].Record(s))
	for _, e := range events[1:] {
		require.NoError(t, work())
		require.NoError(t, e.Record(s))
	}
	require.NoError(t, s.Synchronize(context.Background()))
	var ms []float64
	for i := range repeats {
		d, err := events[i+1].Since(events[i])
		require.NoError(t, err)
		ms = append(ms, float64(d)/1e6)
	}
	slices.Sort(ms)
	return [3]float64{ms[0], ms[repeats/2], ms[repeats-1]}
}
