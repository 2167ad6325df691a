package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/examples/bench/report"
	"sonicmoe/examples/internal/hostile"
)

// TestFrom checks that stored measurements of each kind are printed and drawn.
func TestFrom(t *testing.T) {
	dir := t.ArtifactDir()
	own := filepath.Join(dir, "own.json")
	r := madeUp()
	backward := r.Section
	backward.Pass = "backward"
	r.Backward = &backward
	require.NoError(t, r.Write(own))
	for _, tt := range []struct {
		file  string
		says  []string
		drawn map[string]string // a word that each picture must contain, by file
	}{
		{own, []string{"NVIDIA H200", "7B n=256", "geometric mean", "wrote "},
			map[string]string{"own.svg": "forward on", "own-backward.svg": "backward on", "own-kernels.svg": "aggregate", "own-backward-kernels.svg": "backward kernel by kernel"}},
		{"h200/speed.json", []string{"SonicMoE 0.1.2.post1", "geometric mean"}, map[string]string{"speed.svg": "steady, in joules"}},
		{"h200/decode.json", []string{"prefill µs", "Mixtral 8x7B"}, map[string]string{"decode.svg": "decode.json"}},
		{"h200/rounding.json", []string{"nearest/128", "4096,1024,64,4"}, map[string]string{"rounding.svg": "predicted by rows of 128"}},
	} {
		var out bytes.Buffer
		plot := filepath.Join(dir, strings.TrimSuffix(filepath.Base(tt.file), ".json")+".svg")
		require.NoError(t, run(t.Context(), []string{"-from", tt.file, "-plot", plot}, &out, &out), tt.file)
		for _, want := range tt.says {
			require.Contains(t, out.String(), want, tt.file)
		}
		for name, want := range tt.drawn {
			text, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			require.Contains(t, string(text), want, name)
		}
	}
}

// old returns a report of an older schema with one row.
func old(schema int, tiles string) string {
	return fmt.Sprintf(`{"schema": %d, "device": "NVIDIA H200", "pass": "forward", "fit": {"points": "many"}, "rows": [{"name": "7B", "shape": "24576,1536,256,128,8", %s,
		"new_ms": 5, "new_kernels": 7, "points": [{"product": "up", "point": "128"}], "eager": {"median_ms": 2}, "graph": {"median_ms": 2}, "tflops": 300, "roofline_tflops": 600, "roofline_ms": 1,
		"kernels": [{"name": "up", "median_ms": 1, "roofline_ms": 0.5}]}], "backward": {"pass": "backward", "rows": [{"name": "7B", "shape": "24576,1536,256,128,8"}]}}`, schema, tiles)
}

// TestOlderSchemas checks that reports of older schemas are read, and that their Points are
// left out.
func TestOlderSchemas(t *testing.T) {
	file := filepath.Join(t.TempDir(), "old.json")
	for schema, tiles := range map[int]string{2: `"up": "128x256 s4"`, 3: `"tiles": [{"product": "up", "tiling": "128x256 s4"}]`} {
		require.NoError(t, os.WriteFile(file, []byte(old(schema, tiles)), 0o600))
		r, err := report.Read(t.Context(), file)
		require.NoError(t, err)
		row := r.Rows[0]
		require.Equal(t, report.Size{Shape: "1536,256,128,8", Tokens: 24576}, row.Size)
		require.Equal(t, row.Size, r.Backward.Rows[0].Size)
		require.Equal(t, []report.Tiled{{Product: "up", Tiling: "128x256 s4"}}, row.Tiles)
		require.Empty(t, row.Points)
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), []string{"-from", file}, &out, &out))
		require.Contains(t, out.String(), fmt.Sprintf("warning: a report of schema %d, converted without tilings and fit", schema))
		require.ErrorContains(t, run(t.Context(), []string{"-fit-from", file}, &out, &out), "measure some with -points")
	}
}

// TestWrongFrom checks that a file of another kind, and a picture of emulated times, are
// refused with an error that says why.
func TestWrongFrom(t *testing.T) {
	dir := t.TempDir()
	file, plot := filepath.Join(dir, "r.json"), filepath.Join(dir, "r.png")
	for text, want := range map[string]string{
		"{":                                     "no file of bench -json",
		"[]":                                    "no file of bench -json",
		`[{"x": 1}]`:                            "no file of bench -json",
		`{"rows": []}`:                          "no file of bench -json",
		`{"schema": 1}`:                         "a report of schema 1, must be 2 to 4: measure again",
		`{"schema": 5}`:                         "a report of schema 5, must be 2 to 4: measure again",
		`{"sonicmoe": 1}`:                       "cannot unmarshal number",
		`{"sonicmoe": "", "x": 1}`:              `unknown field "x"`,
		`{"sonicmoe": "", "sonicmoe": "x"}`:     "the field sonicmoe stands twice",
		`{"schema": 4, "rows": [], "rows": []}`: "the field rows stands twice",
		`[{"us": 1, "us": 2}]`:                  "the field us stands twice",
		`[{"rounding": "", "tiles": {"a": 1, "a": 2}}]`: "the field tiles.a stands twice",
		`{"schema": 4, "emulated": true, "rows": []}`:   "no picture: the measurements are of the emulated device and mean nothing",
		`{"sonicmoe": "", "rows": []}`:                  "no layer was compared",
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.ErrorContains(t, run(t.Context(), []string{"-from", file, "-plot", plot}, new(bytes.Buffer), new(bytes.Buffer)), want, text)
		require.NoFileExists(t, plot)
	}
	_, err := report.Read(t.Context(), "h200/decode.json")
	require.ErrorContains(t, err, "h200/decode.json has no report of passes")
	hostile.Refuses(t, func(path string) error {
		return run(t.Context(), []string{"-from", path}, new(bytes.Buffer), new(bytes.Buffer))
	})
	_, _, err = tiny(t, "-shape", "128,64,4,2", "-tokens", "48", "-plot", plot)
	require.ErrorContains(t, err, "-plot needs a GPU: times of the emulated device mean nothing")
	_, _, err = tiny(t, "-from", file)
	require.ErrorContains(t, err, "-device and -from are given")
}
