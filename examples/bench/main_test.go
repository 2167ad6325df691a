package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/examples/bench/report"
	"sonicmoe/examples/internal/hostile"
	"sonicmoe/examples/internal/setup"
	"sonicmoe/internal/child"
	"sonicmoe/internal/drivertest"
	"sonicmoe/moe"
	"sonicmoe/moe/tools"
)

func TestMain(m *testing.M) {
	if child.Role() == program.Name {
		program.Main(run)
		return
	}
	os.Exit(drivertest.Main(m, open.Device))
}

// TestAgainst measures this program against itself.
func TestAgainst(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	t.Setenv(child.Variable, program.Name)
	measure := func(other string) (string, error) {
		var out, errs bytes.Buffer
		err := run(t.Context(), []string{"-device", "emulated", "-cache", "off", "-shape", "128,64,4,2", "-tokens", "80", "-against", other}, &out, &errs)
		return out.String(), err
	}
	out, err := measure(self)
	require.NoError(t, err)
	require.Regexp(t, `128,64,4,2  forward  +\d+\.\d{4}  +\d+\.\d{4}  +\d\.\d+ \(`, out)
	_, err = measure("/no/such/program")
	require.ErrorContains(t, err, "/no/such/program")
}

// tiny runs the command on the emulated device, for the smallest layer that is of use.
func tiny(t *testing.T, more ...string) (out, errs string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	args := append([]string{"-device", "emulated", "-cache", "off", "-warm", "0", "-repeats", "1"}, more...)
	err = run(t.Context(), args, &stdout, &stderr)
	return stdout.String(), stderr.String(), err
}

// TestDecode checks that -decode prints a line and writes an entry of the file for each batch
// size.
func TestDecode(t *testing.T) {
	file := filepath.Join(t.TempDir(), "decode.json")
	out, errs, err := tiny(t, "-decode", "-shape", "128,64,8,2", "-tokens", "3", "-batches", "1,3", "-json", file)
	require.NoError(t, err, errs)
	require.Contains(t, out, "128,64,8,2  1      2.0   0")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var points []report.DecodePoint
	require.NoError(t, json.Unmarshal(text, &points))
	require.Len(t, points, 2)
	require.Equal(t, 3, points[1].Tokens)
	for _, p := range points {
		require.Positive(t, p.US)
		require.Positive(t, p.FewUS)
		require.Positive(t, p.PrefillUS)
		require.InEpsilon(t, p.Share, p.Experts*3*128*64*2/1e6/4.8/p.US, 1e-9)
	}
	_, _, err = tiny(t, "-decode", "-batches", "1,none")
	require.ErrorContains(t, err, `"none" must be a whole number from 1`)
}

// TestPackedWeights checks that -decode and a forward pass take a format of packed weights, and that
// -decode computes the share of the bandwidth from the packed bytes.
func TestPackedWeights(t *testing.T) {
	file := filepath.Join(t.TempDir(), "decode.json")
	out, errs, err := tiny(t, "-decode", "-weights", "mxfp4", "-shape", "128,64,8,2", "-tokens", "3", "-batches", "1,3", "-json", file)
	require.NoError(t, err, errs)
	require.Contains(t, out, "128,64,8,2 mxfp4  1")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var points []report.DecodePoint
	require.NoError(t, json.Unmarshal(text, &points))
	require.Len(t, points, 2)
	for _, p := range points {
		require.InEpsilon(t, p.Share, p.Experts*3*128*64*(1./2+1./32)/1e6/4.8/p.US, 1e-9)
	}
	out, errs, err = tiny(t, "-weights", "uint4-g32-f16", "-pass", "inference", "-shape", "128,64,4,2", "-tokens", "40")
	require.NoError(t, err, errs)
	require.Contains(t, out, "128,64,4,2 uint4-g32-f16")
}

// TestPointsToStandardOutput checks that with -json - the JSON goes to standard output and the
// table to standard error. It also checks that kernels are stored in the named cache, or in
// none with -cache off.
func TestPointsToStandardOutput(t *testing.T) {
	user, named := t.TempDir(), t.TempDir()
	t.Setenv("SONICMOE_CACHE", user)
	for flag, more := range map[string][]string{"-decode": {"-shape", "128,64,4,2", "-tokens", "3", "-batches", "1"}, "-rounding": {"-shape", "128,64,2,2", "-tokens", "20"}} {
		for _, kept := range []string{"off", named} {
			if testing.Short() && (kept == named) != (flag == "-decode") {
				continue // a benchmark that ignores -cache fails with either
			}
			out, errs, err := tiny(t, append([]string{flag, "-json", "-", "-cache", kept}, more...)...)
			require.NoError(t, err, errs)
			var points []map[string]any
			require.NoError(t, json.Unmarshal([]byte(out), &points), "%s: %s", flag, out)
			require.Len(t, points, 1)
			require.Contains(t, errs, "128,64,")
		}
	}
	for dir, holds := range map[string]bool{user: false, named: true} {
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Equal(t, holds, len(files) > 0, dir)
	}
}

// TestDecodeEnds checks that -decode ends when the context of the program ends.
func TestDecodeEnds(t *testing.T) {
	var out, errs bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := run(ctx, []string{"-device", "emulated", "-cache", "off", "-decode", "-shape", "128,64,4,2", "-batches", "1"}, &out, &errs)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "loading kernel", "before anything runs")
}

// TestRun checks the table and the JSON of one run with all measurements.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "bench.json")
	out, errs, err := tiny(t, "-shape", "128,64,4,2", "-tokens", "80", "-full", "-routing", "zipf", "-json", file)
	require.NoError(t, err, errs)
	for _, want := range []string{
		"emulated H200", "EMULATED: these times", "(d,n,E,K = 128,64,4,2, T = 80)", "of roofline", "L2 flushed", "rested chip", "sustained",
		"router", "plan", "up", "down", "aggregate", "host: eager", "zipf", "of uniform", "wrote " + file,
	} {
		require.Contains(t, out, want)
	}
	require.NotContains(t, out, "warning", "times of the emulated device mean nothing")
	r, err := report.Read(t.Context(), file)
	require.NoError(t, err)
	require.Equal(t, report.Schema, r.Schema)
	require.True(t, r.Emulated)
	require.Len(t, r.Rows, 1)
	row := r.Rows[0]
	require.Empty(t, row.Error)
	for _, s := range []*report.Sample{row.Eager, row.Graph, row.Sustained} {
		require.Positive(t, s.FastestMS)
		require.GreaterOrEqual(t, s.MedianMS, s.FastestMS)
		require.GreaterOrEqual(t, s.SlowestMS, s.MedianMS)
		require.Len(t, s.Rounds, rounds)
	}
	require.Positive(t, row.Flushed.MedianMS)
	require.Positive(t, row.Cool.MedianMS)
	var names []string
	var sum float64
	for _, k := range row.Kernels {
		names, sum = append(names, k.Name), sum+k.MedianMS
	}
	require.Equal(t, []string{"router", "plan", "up", "down", "aggregate"}, names)
	require.InEpsilon(t, sum, row.KernelSumMS, 1e-12)
	require.Positive(t, row.Host.EagerUS)
	require.Positive(t, row.Host.GraphLowUS)
	require.Equal(t, 1, row.Host.Batches*row.Host.Batch)
	require.Equal(t, []int{7, 7}, []int{row.New, row.Compiled}, "no kernel of backward")
	require.Nil(t, r.Backward)
	require.Len(t, row.Routing, 2)
	require.EqualValues(t, 1, row.Routing[0].Uniform)
}

// TestBoth checks that a report of both passes has two sections, each with a roofline of its
// own.
func TestBoth(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "both.json")
	out, errs, err := tiny(t, "-shape", "128,64,3,2", "-tokens", "24", "-pass", "both", "-full", "-routing", "zipf", "-startup", "-json", file)
	require.NoError(t, err, errs)
	for _, want := range []string{"forward, then backward", "FORWARD", "BACKWARD", "dh 128x128", "dw2 128x128", "plan-splits", "start-up, forward: ", "start-up, forward and backward: "} {
		require.Contains(t, out, want)
	}
	r, err := report.Read(t.Context(), file)
	require.NoError(t, err)
	require.Equal(t, "forward", r.Pass)
	require.Equal(t, "aggregate", r.Rows[0].Kernels[4].Name)
	require.Equal(t, "backward", r.Backward.Pass)
	require.Len(t, r.Backward.Rows, 1)
	row := r.Backward.Rows[0]
	require.Empty(t, row.Error)
	var tiled []string
	for _, p := range row.Tiles {
		tiled = append(tiled, p.Product)
	}
	require.Equal(t, []string{"dh", "dw2", "dw1", "dx"}, tiled)
	var names []string
	var roofline float64
	for _, k := range row.Kernels {
		names, roofline = append(names, k.Name), roofline+k.RooflineMS
	}
	require.Equal(t, []string{"count", "plan-pairs", "dh", "dscores", "plan-splits", "dw2", "dw1", "dx", "sum", "drouter", "drouter-sum"}, names)
	require.InEpsilon(t, row.RooflineMS, roofline, 0.05, "kernels have all of the roofline (in whole nanoseconds)")
	for _, s := range []*report.Sample{row.Eager, row.Graph, row.Flushed, row.Cool, row.Sustained} {
		require.Positive(t, s.MedianMS)
	}
	require.Len(t, row.Routing, 2)
	require.Empty(t, row.Startup, "once is enough")
	startup := r.Rows[0].Startup
	require.Len(t, startup, 3)
	all, err := tools.Sources(driver.H200(), moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 3, TopK: 2})
	require.NoError(t, err)
	many, err := tools.Sources(driver.H200(), moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 3, TopK: 2}, moe.WithoutDecode())
	require.NoError(t, err)
	require.Equal(t, []int{len(many), len(all)}, []int{row.New, startup[2].Kernels}, "a layer starts with all kernels, rows have many tokens")
	require.Less(t, startup[1].Kernels, startup[2].Kernels)
	for _, s := range startup {
		require.Positive(t, s.ColdMS)
		require.Positive(t, s.WarmMS)
		require.Positive(t, s.AgainMS)
	}
}

// TestInference checks that an inference pass runs the kernel that does not store H, and that
// its roofline does not count H.
func TestInference(t *testing.T) {
	out, errs, err := tiny(t, "-shape", "128,64,4,2", "-tokens", "48", "-pass", "inference")
	require.NoError(t, err, errs)
	require.Contains(t, out, "up-inference")
	row := setup.Known()[0]
	with, without := passes["forward"].work(row.Config, row.Tokens), passes["inference"].work(row.Config, row.Tokens)
	require.EqualValues(t, row.Config.Shapes(row.Tokens).H.Bytes(), with[2].Bytes-without[2].Bytes)
}

// TestRowFails checks that a benchmark row that fails has the reason, that the next row is still
// measured, and that the run then fails with complete JSON.
func TestRowFails(t *testing.T) {
	out, errs, err := tiny(t, "-shape", "60,64,4,2", "-shape", "128,64,4,2", "-tokens", "48", "-json", "-")
	require.EqualError(t, err, "1 of 2 rows failed")
	require.Contains(t, errs, "ERROR: ")
	require.Contains(t, errs, "failed")
	var r report.Report
	require.NoError(t, json.Unmarshal([]byte(out), &r), "nothing but JSON")
	require.Contains(t, r.Rows[0].Error, "Hidden")
	require.Empty(t, r.Rows[1].Error)
	require.Positive(t, r.Rows[1].TFLOPS)
}

// TestFit checks that tilings are measured, printed and fitted, and that a later run can fit to
// the file of an earlier one.
func TestFit(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	file := filepath.Join(t.TempDir(), "points.json")
	out, errs, err := tiny(t, "-shape", "128,64,2,1", "-tokens", "8", "-pass", "both", "-fit", "-json", file)
	require.NoError(t, err, errs)
	for _, want := range []string{"up point", "down point", "dh point", "dw2 point", "dw1 point", "dx point", "default", "DWKTileClocks", "var H200 = Model{", "fitted loses"} {
		require.Contains(t, out, want)
	}
	r, err := report.Read(t.Context(), file)
	require.NoError(t, err)
	require.Equal(t, len(r.Rows[0].Points)+len(r.Backward.Rows[0].Points), r.Fit.Points)
	require.Len(t, r.Fit.Losses, len(tools.Products()))
	var again bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-fit-from", file}, &again, &bytes.Buffer{}))
	require.Contains(t, out, again.String(), "the same fit")
	out, errs, err = tiny(t, "-shape", "128,64,2,1", "-tokens", "8", "-points", "-pause", "1ms")
	require.NoError(t, err, errs)
	require.Contains(t, out, "down point")
}

func TestList(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-list"}, &out, &bytes.Buffer{}))
	require.Equal(t, len(setup.Known()), strings.Count(out.String(), "\n"))
	require.Contains(t, out.String(), "GLM-4.5-Air")
}

// TestRounding checks that -rounding prints a line and writes an entry of the file for each
// size, and that the experts' counts are multiples of the tile.
func TestRounding(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rounding.json")
	out, errs, err := tiny(t, "-rounding", "-round-tile", "16", "-json", file)
	require.NoError(t, err, errs)
	require.Contains(t, out, "nearest/16")
	require.Contains(t, out, "128,64,4,2  150 ")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var points []report.RoundingPoint
	require.NoError(t, json.Unmarshal(text, &points))
	require.Len(t, points, 2)
	for _, p := range points {
		sum := 0
		for i, n := range p.Plain.Counts {
			sum += n
			require.Zero(t, p.Rounded.Counts[i]%16)
			require.Less(t, max(n-p.Rounded.Counts[i], p.Rounded.Counts[i]-n), 16)
		}
		require.Equal(t, 300, sum)
		require.Positive(t, p.Plain.ForwardMS)
		require.Positive(t, p.Rounded.BackwardMS)
	}
	_, _, err = tiny(t, "-rounding", "-round", "sideways")
	require.ErrorContains(t, err, "sideways")
}

func TestFilesAreBounded(t *testing.T) {
	hostile.Refuses(t, func(path string) error { return run(t.Context(), []string{"-fit-from", path}, io.Discard, io.Discard) })
}
