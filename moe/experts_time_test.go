package moe_test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// What each kind of expert takes, beside SwiGLU with the same sizes and that once
// more, which tells how far to believe it: rested, and under load that holds the chip
// at 700 W. It runs where SONICMOE_ROWS is "kinds"; SONICMOE_KINDS may name some of
// them, SONICMOE_SIZES some of the layers, each of which takes a minute a kind.
func TestKindsTime(t *testing.T) {
	if os.Getenv("SONICMOE_ROWS") != "kinds" {
		t.Skip("SONICMOE_ROWS=kinds times the kinds of experts on a GPU")
	}
	for _, row := range []struct {
		name   string
		tokens int
		config moe.Config
	}{
		{"Qwen3-30B-A3B", 32768, moe.Config{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8, TokensHint: 32768}},
		{"DeepSeek-V2-Lite", 32768, moe.Config{Hidden: 2048, Intermediate: 1408, NumExperts: 64, TopK: 6, TokensHint: 32768}},
		{"gpt-oss-20b", 16384, moe.Config{Hidden: 2880, Intermediate: 2880, NumExperts: 32, TopK: 4, TokensHint: 16384}},
	} {
		if !named("SONICMOE_SIZES", row.name) {
			continue
		}
		plain, again := newTimedTrial(t, row.config, row.tokens), newTimedTrial(t, row.config, row.tokens)
		for _, kind := range []struct {
			name   string
			change func(c *moe.Config)
		}{
			{"clamped", func(c *moe.Config) { c.Limit = 7 }},
			{"swiglu-oai", func(c *moe.Config) { c.Activation, c.Alpha, c.Limit = moe.SwiGLUOAI, 1.702, 7 }},
			{"geglu-tanh", func(c *moe.Config) { c.Activation = moe.GeGLUTanh }},
			{"geglu-erf", func(c *moe.Config) { c.Activation = moe.GeGLUErf }},
			{"reglu", func(c *moe.Config) { c.Activation = moe.ReGLU }},
			{"apart", func(c *moe.Config) { c.GateUp = moe.Apart }},
			{"in-out", func(c *moe.Config) { c.WeightOrder = moe.InOut }},
			{"in pairs", func(c *moe.Config) { c.WeightOrder, c.GateUp = moe.InOut, moe.Interleaved }},
			{"shared", func(c *moe.Config) { c.SharedExperts, c.SharedGate = 1, true }},
			{"biases", func(c *moe.Config) { c.Bias = true }},
			{"biases in pairs", func(c *moe.Config) { c.WeightOrder, c.GateUp, c.Bias = moe.InOut, moe.Interleaved, true }},
			{"n + 16", func(c *moe.Config) { c.Intermediate += 16 }},
			{"d + 16", func(c *moe.Config) { c.Hidden += 16 }},
		} {
			if !named("SONICMOE_KINDS", kind.name) {
				continue
			}
			changed := row.config
			kind.change(&changed)
			with := newTimedTrial(t, changed, row.tokens)
			for i, pass := range []string{"forward", "backward"} {
				passes := []timedPass{{plain, passesOf(plain)[i]}, {again, passesOf(again)[i]}, {with, passesOf(with)[i]}}
				for _, pause := range []time.Duration{rest, 0} {
					times := inTurns(t, 150, pause, passes)
					t.Logf("%s %-16s %-8s pauses of %v: %.3f ms beside %.3f: %v; %+.1f %% the work; the same layer once more: %v", row.name, kind.name, pass, pause, middle(times[2]), middle(times[0]), moreThan(times[0], times[2]),
						100*float64(changed.Hidden*changed.Intermediate)/float64(row.config.Hidden*row.config.Intermediate)-100, moreThan(times[0], times[1]))
				}
				kernels := kernelsInTurns(t, 25, passes)
				for _, kernel := range slices.Sorted(maps.Keys(kernels[2])) {
					if kernels[0][kernel] == nil {
						t.Logf("  %-20s %.4f", kernel, middle(kernels[2][kernel]))
						continue
					}
					t.Logf("  %-20s %.4f beside %.4f: %v; once more: %v", kernel, middle(kernels[2][kernel]), middle(kernels[0][kernel]),
						moreThan(kernels[0][kernel], kernels[2][kernel]), moreThan(kernels[0][kernel], kernels[1][kernel]))
				}
			}
			require.NoError(t, with.Close())
		}
		require.NoError(t, plain.Close())
		require.NoError(t, again.Close())
	}
}

// named: a variable of the environment, unless empty, has the name in its list.
func named(variable, name string) bool {
	list := os.Getenv(variable)
	return list == "" || slices.Contains(strings.Split(list, ","), name)
}

// newTimedTrial can run both passes.
func newTimedTrial(t *testing.T, c moe.Config, tokens int) *trial.Trial {
	tr := newTrial(t, c, tokens, 1)
	require.NoError(t, tr.PrepareBackward(17, moe.BF16))
	return tr
}

// passesOf are forward and backward.
func passesOf(tr *trial.Trial) [2]func() error {
	return [2]func() error{
		func() error { return tr.Call().Forward(tr.Stream(), tr.Args) },
		func() error { return tr.Call().Backward(tr.Stream(), tr.Back) },
	}
}

// What rounding to whole tiles costs and gains beside plain top-K, in turns, and
// what its own kernels take. It runs where SONICMOE_ROWS is "rounding".
func TestRoundingTime(t *testing.T) {
	if os.Getenv("SONICMOE_ROWS") != "rounding" {
		t.Skip("SONICMOE_ROWS=rounding times token rounding on a GPU")
	}
	for _, row := range []struct {
		name   string
		tokens int
		config moe.Config
	}{
		{"little but routing", 32768, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 128, TopK: 8}},
		{"Qwen3-30B-A3B", 32768, moe.Config{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8}},
		{"16384 tokens, 256 small experts", 16384, moe.Config{Hidden: 1536, Intermediate: 512, NumExperts: 256, TopK: 4}},
		{"16384 tokens, 512 small experts", 16384, moe.Config{Hidden: 1536, Intermediate: 512, NumExperts: 512, TopK: 4}},
	} {
		c := row.config
		c.TokensHint, c.Rounding = row.tokens, moe.Rounding{Rule: moe.RoundNearest, Tile: 128}
		tr := newTrial(t, c, row.tokens, 1)
		dev, s := testDevice(t), tr.Stream()
		memory := moe.NewArena(dev)
		rows := tr.Layer.RoundedRows(row.tokens)
		sizes, err := tr.Layer.ListSizes(row.tokens, rows)
		require.NoError(t, err)
		rounded := tr.Args
		rounded.List, rounded.Logits = memory.RoutingList(tr.Layer, rows), memory.Tensor(tr.Layer.Shapes(row.tokens).Logits)
		rounded.H = memory.Tensor(c.ListShapes(rows).H)
		rounded.Workspace = memory.Buffer(sizes.BackwardWorkspace)
		require.NoError(t, memory.Err())
		median := func(f moe.ForwardArgs) float64 {
			m, err := trial.Measure(testContext(t), dev, s, 100*time.Millisecond, 16, func() error { return tr.Call().Forward(s, f) })
			require.NoError(t, err)
			return float64(m.Median) / 1e6
		}
		before, with, after := median(tr.Args), median(rounded), median(tr.Args)
		t.Logf("%s: forward %.3f ms rounded, plain %.3f and %.3f (%+.1f %%)", row.name, with, before, after, 200*with/(before+after)-100)
		graphs := [2]float64{graphTime(t, tr, tr.Args), graphTime(t, tr, rounded)}
		t.Logf("  as graphs: plain %.4f ms, rounded %.4f (%+.4f)", graphs[0], graphs[1], graphs[1]-graphs[0])
		for i, f := range []moe.ForwardArgs{tr.Args, rounded} {
			for kernel, ms := range kernelTimes(t, tr, func() error { return tr.Call().Forward(s, f) }) {
				t.Logf("  %s %-14s %.4f ms", [...]string{"plain", "rounded"}[i], kernel, ms)
			}
		}
		require.NoError(t, memory.Free())
		require.NoError(t, tr.Close())
	}
}

// graphTime is the median of a pass captured in a graph, in milliseconds.
func graphTime(t *testing.T, tr *trial.Trial, f moe.ForwardArgs) float64 {
	s := tr.Stream()
	require.NoError(t, s.BeginCapture())
	require.NoError(t, tr.Call().Forward(s, f))
	g, err := s.EndCapture()
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close()) }()
	return median(t, s, 100*time.Millisecond, 30, func() error { return g.Launch(s) })[1]
}

// kernelTimes are the median times of a pass's kernels in their places, in
// milliseconds: of passes queued one behind the other, so that none waits for the
// host.
func kernelTimes(t *testing.T, tr *trial.Trial, pass func() error) map[string]float64 {
	const passes = 12
	dev, s := testDevice(t), tr.Stream()
	var names []string
	var events []driver.Event
	mark := func(name string, s driver.Stream) error {
		e, err := dev.NewEvent()
		if err != nil {
			return err
		}
		names, events = append(names, name), append(events, e)
		return e.Record(s)
	}
	tr.Call().Observe(mark)
	for range passes {
		require.NoError(t, pass())
		require.NoError(t, mark("", s))
	}
	tr.Call().Observe(nil)
	require.NoError(t, s.Synchronize(testContext(t)))
	all := map[string][]float64{}
	for i, name := range names[:len(names)-1] {
		d, err := events[i+1].Since(events[i])
		require.NoError(t, err)
		all[name] = append(all[name], float64(d)/1e6)
	}
	for _, e := range events {
		require.NoError(t, e.Close())
	}
	times := map[string]float64{}
	for name, ms := range all {
		if name != "" {
			slices.Sort(ms)
			times[name] = ms[len(ms)/2]
		}
	}
	return times
}

// What the kinds of weights' gradients take: 16 and 32 bits, stored and added. It
// runs where SONICMOE_ROWS is "gradients".
func TestGradientsTime(t *testing.T) {
	if os.Getenv("SONICMOE_ROWS") != "gradients" {
		t.Skip("SONICMOE_ROWS=gradients times the kinds of gradients on a GPU")
	}
	for _, c := range []moe.Config{
		{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8, TokensHint: 32768},
		{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8, TokensHint: 32768, WeightOrder: moe.InOut},
		{Hidden: 2880, Intermediate: 2880, NumExperts: 32, TopK: 4, TokensHint: 16384},
	} {
		for _, kind := range []moe.Type{moe.BF16, moe.F32} {
			tr := newTrial(t, c, c.TokensHint, 1)
			require.NoError(t, tr.PrepareBackward(17, kind))
			require.NoError(t, tr.Call().Forward(tr.Stream(), tr.Args))
			for _, add := range []bool{false, true} {
				b := tr.Back
				b.DW1.Accumulate, b.DW2.Accumulate, b.DRouter.Accumulate = add, add, add
				m, err := trial.Measure(testContext(t), testDevice(t), tr.Stream(), time.Second, 24, func() error { return tr.Call().Backward(tr.Stream(), b) })
				require.NoError(t, err)
				t.Logf("%v %v add=%v: backward %.3f ms", c, kind, add, float64(m.Median)/1e6)
			}
			require.NoError(t, tr.Close())
		}
	}
}
