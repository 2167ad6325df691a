package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/autotune"
	"sonicmoe/cache"
)

func TestMain(m *testing.M) {
	autotune.WorkerMain()
	os.Exit(m.Run())
}

// tuneWith runs the command on the emulated device.
func tuneWith(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	err := run(t.Context(), append([]string{"-device", "emulated", "-most", "2", "-quiet"}, args...), &out, &errs)
	require.NoError(t, err, "%s%s", &out, &errs)
	return out.String()
}

// Tuned, stored, written, drawn; the second time nothing is left to do.
func TestTune(t *testing.T) {
	dir := t.TempDir()
	choices, picture, c := filepath.Join(dir, "choices.json"), filepath.Join(dir, "p.png"), filepath.Join(dir, "cache")
	args := []string{"-cache", c, "-products", "down,dw2", "-choices", choices}
	out := tuneWith(t, append(args, "-plot", picture)...)
	t.Log(out)
	assert.Contains(t, out, "2 products tuned in")
	assert.Contains(t, out, "2 of 6 products tuned; 0 kernels compiled")
	data, err := os.ReadFile(picture)
	require.NoError(t, err)
	assert.True(t, bytes.HasPrefix(data, []byte("\x89PNG")))
	f, err := autotune.ReadFile(choices)
	require.NoError(t, err)
	stored := cache.Open(cache.Options{Dir: c})
	infos, err := stored.List(t.Context())
	require.NoError(t, err)
	same := 0
	for _, info := range infos {
		if value, outcome := f.GetChoice(info.Label); outcome == cache.Hit {
			same++
			of, _ := stored.GetChoice(info.Label)
			assert.JSONEq(t, string(of), string(value))
		}
	}
	assert.Equal(t, 2, same, "file and cache agree")

	out = tuneWith(t, args...)
	assert.Contains(t, out, "tuned before: down, dw2\n")
	assert.Contains(t, out, "0 products tuned in")
	assert.Contains(t, out, "0 kernels compiled")
}

// Rows as uneven as the file says; a file of too few experts is refused.
func TestHistogram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows.json")
	require.NoError(t, os.WriteFile(file, []byte("[100, 10, 1, 0]"), 0o600))
	out := tuneWith(t, "-cache", t.TempDir(), "-products", "down", "-histogram", file, "-forward")
	assert.Contains(t, out, "1 of 2 products tuned; 0 kernels compiled")
	require.NoError(t, os.WriteFile(file, []byte("[100, 10]"), 0o600))
	var errs bytes.Buffer
	err := run(t.Context(), []string{"-device", "emulated", "-histogram", file, "-cache", t.TempDir()}, &errs, &errs)
	assert.ErrorContains(t, err, "Histogram is 2 experts, must be 4")
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"-row", "none"}, "quickstart -rows"},
		{[]string{"-shape", "1,2,3"}, "five numbers"},
		{[]string{"-shape", "128,64,4,2,x"}, "invalid syntax"},
		{[]string{"now"}, "is no flag"},
		{[]string{"-device", "abacus"}, "abacus"},
		{[]string{"-device", "emulated", "-shape", "100,64,4,2,8"}, "Config.Hidden"},
		{[]string{"-device", "emulated", "-products", "sideways"}, "must be one of"},
	} {
		var out, errs bytes.Buffer
		assert.ErrorContains(t, run(t.Context(), c.args, &out, &errs), c.says, "%v", c.args)
	}
}

// A file that is no choices file stays as it is.
func TestForeignChoicesFileStays(t *testing.T) {
	for name, text := range map[string]string{"notes": "precious notes", "other JSON": `{"a": 1}`, "later format": `{"Format": "sonicmoe choices 2"}`, "empty": ""} {
		path := filepath.Join(t.TempDir(), "choices.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		var out bytes.Buffer
		err := run(t.Context(), []string{"-device", "emulated", "-choices", path}, &out, &out)
		assert.Empty(t, out.String(), "said before anything is tuned")
		require.ErrorContains(t, err, path, name)
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, text, string(got), name)
	}
}
