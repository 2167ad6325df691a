package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/examples/bench/report"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe"
)

// rowAt returns an invented measurement of a row, at a given fraction of the row's roofline.
func rowAt(row peers.Row, part float64) report.Row {
	p := passes["forward"]
	roofline := spec.H200.Roofline(p.work(row.Config, row.Tokens))
	r := report.Row{Name: row.Name, Size: report.SizeOf(row), RooflineMS: report.Milliseconds(roofline), Roofline: spec.TFLOPS(p.flops(row.Config, row.Tokens), roofline)}
	ms := r.RooflineMS / part
	r.Eager, r.Graph = sampled(ms, ms*0.99, ms*1.01, 1.7, 1.71), sampled(ms*1.01, ms, ms*1.02, 1.7, 1.71)
	r.TFLOPS, r.Peers = r.Roofline*part, peersOf(row, p)
	for i := range r.Peers {
		r.Peers[i].Ratio = r.TFLOPS / r.Peers[i].TFLOPS
	}
	for _, w := range p.work(row.Config, row.Tokens) {
		t := report.Milliseconds(spec.H200.Time(w))
		r.Kernels = append(r.Kernels, report.Kernel{Name: w.Kernel, MedianMS: t / part, RooflineMS: t})
		r.KernelSumMS += t / part
	}
	return r
}

func madeUp() *report.Report {
	r := &report.Report{Schema: report.Schema, Device: "NVIDIA H200", Driver: "driver 13000", Section: report.Section{Pass: "forward"}, Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	for i, row := range peers.All() {
		r.Rows = append(r.Rows, rowAt(row, 0.7+0.02*float64(i%10)))
	}
	r.Rows = append(r.Rows, report.Row{Name: "broken", Error: "it broke"})
	r.Summarize()
	return r
}

// TestSummary checks that the summary has a line for each row, with the recorded speeds of the
// peers.
func TestSummary(t *testing.T) {
	var b strings.Builder
	r := madeUp()
	report.PrintSummary(&b, &r.Section)
	lines := strings.Split(b.String(), "\n")
	at := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "7B n=256") })
	require.Positive(t, at)
	require.Equal(t, []string{"7B", "n=256"}, strings.Fields(lines[at])[:2])
	for _, want := range []string{" 608 ", " 610 ", " 467 ", "MoMoE 271", " 76 %"} {
		require.Contains(t, lines[at]+" ", want)
	}
	require.Contains(t, b.String(), "broken: ERROR: it broke")
	require.Contains(t, b.String(), "geometric mean of our speed over SonicMoE 0.1.2.post1's: ")
	require.InDelta(t, 608*0.76/467, r.Rows[3].Peers[1].Ratio, 0.01)
	require.Contains(t, b.String(), "lowest: 1.4B n=256, 70 % of its roofline; ms over theirs: up ")
	for i := 1; i <= len(r.Rows); i++ {
		require.Len(t, []rune(lines[i]), len([]rune(lines[0])), "columns stand under each other: %q", lines[i])
	}
}

// TestDraw draws pictures of all rows, as bitmaps and as vectors with text.
func TestDraw(t *testing.T) {
	dir := t.ArtifactDir() // go test -artifacts keeps the pictures
	r := madeUp()
	for _, ext := range []string{".png", ".svg"} {
		files, err := report.Draw(r, &r.Section, filepath.Join(dir, "bench"+ext))
		require.NoError(t, err)
		require.Len(t, files, 2)
	}
	for name, want := range map[string][]string{
		"bench.svg":         {"SonicMoE", "roofline", "ours", "DeepSeek-V3"},
		"bench-kernels.svg": {"aggregate", "down", "DeepSeek-V3"},
	} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		for _, text := range want {
			require.Contains(t, string(b), text, name)
		}
		require.NotContains(t, string(b), "broken")
	}
}

// TestReportFile checks that a report stays the same when it is written to a file and read
// again, and that a damaged file is an error.
func TestReportFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "r.json")
	r := madeUp()
	require.NoError(t, r.Write(name))
	again, err := report.Read(t.Context(), name)
	require.NoError(t, err)
	require.Equal(t, r, again)
	require.NoError(t, os.WriteFile(name, []byte("{"), 0o600))
	_, err = report.Read(t.Context(), name)
	require.ErrorContains(t, err, "r.json")
	b, err := json.Marshal(again)
	require.NoError(t, err)
	require.NotContains(t, string(b), "NaN")
}

// TestRoute checks that each routing has the distribution that its name says, and that each
// token has K different experts.
func TestRoute(t *testing.T) {
	c := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 32, TopK: 4}
	const tokens = 2000
	shares := map[string]float64{}
	for _, r := range routings {
		ids, err := route(r.name, c, tokens)
		require.NoError(t, err)
		require.Len(t, ids, tokens*c.TopK)
		for at := 0; at < len(ids); at += c.TopK {
			seen := map[int32]bool{}
			for _, e := range ids[at : at+c.TopK] {
				require.False(t, seen[e], "token %d has expert %d twice", at/c.TopK, e)
				require.True(t, e >= 0 && int(e) < c.NumExperts)
				seen[e] = true
			}
			if r.name == "one" {
				require.True(t, seen[0])
			}
		}
		largest, empty := load(ids, c.NumExperts)
		shares[r.name] = largest
		require.Equal(t, map[string]int{"half": 16}[r.name], empty, r.name)
		again, err := route(r.name, c, tokens)
		require.NoError(t, err)
		require.Equal(t, ids, again, "the same on every run")
	}
	require.InDelta(t, 1.1, shares["uniform"], 0.15)
	require.InDelta(t, 2.15, shares["half"], 0.2)
	require.InDelta(t, 8, shares["one"], 0.001) // expert 0 has T rows, and the mean is T·4/32
	require.Greater(t, shares["zipf"], 4.)

	c.NumExperts = 6
	_, err := route("half", c, tokens)
	require.ErrorContains(t, err, "has 3 experts with rows, a token needs 4")
	_, err = route("odd", c, tokens)
	require.ErrorContains(t, err, "odd")
}

// TestAddedProduct checks that a product that is added to the table appears in a row's report
// without further code.
func TestAddedProduct(t *testing.T) {
	var b strings.Builder
	at := gemm.Tiling{TileN: 128, Stages: 5, GroupM: 4, ClusterM: 1}
	report.PrintRow(&b, report.Row{Name: "added", New: 1, Tiles: []report.Tiled{{Product: "relu", Tiling: at.String()}}, Points: []report.Point{
		{Product: "up", Point: at, MS: 1}, {Product: "relu", Point: at, MS: 2, Chosen: true},
	}})
	for _, want := range []string{"relu 128x128 s5 p4 c1  made in", "up point", "relu point", "relu: the default takes 0.0 % more than the best of 1"} {
		require.Contains(t, b.String(), want)
	}
}
