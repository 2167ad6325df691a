package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/autotune"
	"sonicmoe/cache"
	"sonicmoe/driver/open"
	"sonicmoe/examples/internal/hostile"
	"sonicmoe/internal/drivertest"
)

func TestMain(m *testing.M) {
	autotune.WorkerMain()
	os.Exit(drivertest.Main(m, open.Device))
}

// tuneWith runs the command on the emulated device.
func tuneWith(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	err := run(t.Context(), append([]string{"-device", "emulated", "-most", "2", "-quiet"}, args...), &out, &errs)
	require.NoError(t, err, "%s%s", &out, &errs)
	return out.String()
}

// TestTune checks that the command tunes and draws, and that it stores nothing that was
// measured in emulated time.
func TestTune(t *testing.T) {
	dir := t.TempDir()
	choices, picture, c := filepath.Join(dir, "choices.json"), filepath.Join(dir, "p.png"), filepath.Join(dir, "cache")
	products, tuned := "down,dw2", "2 products tuned in"
	if testing.Short() {
		products, tuned = "dw2", "1 products tuned in" // TestHistogram tunes the other products
	}
	out := tuneWith(t, "-cache", c, "-products", products, "-choices", choices, "-plot", picture)
	t.Log(out)
	for _, want := range []string{"EMULATED", tuned, "choices        not stored", "0 of 6 products tuned"} {
		assert.Contains(t, out, want)
	}
	data, err := os.ReadFile(picture)
	require.NoError(t, err)
	assert.True(t, bytes.HasPrefix(data, []byte("\x89PNG")))
	assert.NoFileExists(t, choices)
	infos, err := cache.Open(cache.Options{Dir: c}).List(t.Context())
	require.NoError(t, err)
	for _, info := range infos {
		if info.Kind == "choice" { // records that results are right may stay, because they do not depend on the clock
			assert.True(t, strings.HasPrefix(info.Label, "proven "), info.Label)
		}
	}
}

// TestPackedWeights checks that the products of a layer of packed weights are tuned, without those of
// gradients, which the layer does not have.
func TestPackedWeights(t *testing.T) {
	out := tuneWith(t, "-cache", "off", "-weights", "fp8", "-shape", "128,64,4,2", "-tokens", "24", "-products", "up,dx")
	assert.Contains(t, out, "weights=fp8")
	assert.Contains(t, out, "2 products tuned in")
	var errs bytes.Buffer
	args := []string{"-device", "emulated", "-cache", "off", "-weights", "fp8", "-shape", "128,64,4,2", "-tokens", "24", "-products", "dw1"}
	require.ErrorContains(t, run(t.Context(), args, &errs, &errs), `Products is "dw1", gradients of the experts' weights, must be other products: packed weights have no gradients`)
}

// TestBudget checks that tuning ends when the budget is used up.
func TestBudget(t *testing.T) {
	var out, errs bytes.Buffer
	start := time.Now()
	err := run(t.Context(), []string{"-device", "emulated", "-shape", "256,128,8,2", "-tokens", "192", "-budget", "1s", "-cache", "off"}, &out, &errs)
	require.ErrorContains(t, err, "the budget of 1s ended")
	assert.Less(t, time.Since(start), time.Minute)
	assert.Empty(t, errs.String(), "progress is for terminals")
}

// TestEndless checks that tuning on the emulated device does not begin if it cannot end within
// the budget.
func TestEndless(t *testing.T) {
	for _, tt := range []struct {
		args, want string
	}{
		{"-budget 45s", "on the emulated device this takes more than 1h9m35s and the -budget is 45s: tune on a GPU, or a layer such as -shape 128,64,4,2 -tokens 40"},
		{"-forward -most 1", "takes more than 7m44s"},
		{"-products down -most 1", "takes more than 2m35s"},
	} {
		start := time.Now()
		err := run(t.Context(), append([]string{"-device", "emulated", "-row", "7B n=256", "-cache", "off"}, strings.Fields(tt.args)...), io.Discard, io.Discard)
		require.ErrorContains(t, err, tt.want)
		assert.Less(t, time.Since(start), 10*time.Second)
	}
}

// TestHistogram checks that the rows per expert are as uneven as in the file, and that a file
// with too few experts is refused.
func TestHistogram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows.json")
	require.NoError(t, os.WriteFile(file, []byte("[100, 10, 1, 0]"), 0o600))
	out := tuneWith(t, "-cache", t.TempDir(), "-products", "down", "-histogram", file, "-forward")
	assert.Contains(t, out, "1 products tuned in")
	require.NoError(t, os.WriteFile(file, []byte("[100, 10]"), 0o600))
	var errs bytes.Buffer
	err := run(t.Context(), []string{"-device", "emulated", "-histogram", file, "-cache", t.TempDir()}, &errs, &errs)
	assert.ErrorContains(t, err, "Histogram is 2 experts, must be 4")
	require.NoError(t, os.WriteFile(file, []byte("[100, 10, 1, 0] [0]"), 0o600))
	_, err = parse(t.Context(), []string{"-histogram", file}, io.Discard)
	assert.ErrorContains(t, err, "text after the end of the JSON")
	require.NoError(t, os.WriteFile(file, []byte("null"), 0o600))
	_, err = parse(t.Context(), []string{"-histogram", file}, io.Discard)
	assert.ErrorContains(t, err, "an array of whole numbers")
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"-row", "none"}, "-list prints the names"},
		{[]string{"-shape", "1,2,3"}, "must be d,n,E,K"},
		{[]string{"-shape", "128,64,4,x"}, "must be a whole number"},
		{[]string{"-shape", "128,64,4,2"}, "needs -tokens"},
		{[]string{"-row", "7B n=256", "-row", "7B n=512"}, "one size is allowed"},
		{[]string{"-budget", "-1s"}, "must be positive"},
		{[]string{"now"}, "is no flag"},
		{[]string{"-device", "abacus"}, "abacus"},
		{[]string{"-device", "emulated", "-shape", "100,64,4,2", "-tokens", "8"}, "Config.Hidden"},
		{[]string{"-device", "emulated", "-products", "sideways"}, "must be one of"},
		{[]string{"-device", "emulated", "-products", "dh", "-forward"}, "of backward"},
	} {
		var out, errs bytes.Buffer
		assert.ErrorContains(t, run(t.Context(), c.args, &out, &errs), c.says, "%v", c.args)
	}
}

// TestTokensOfTheDefaultLayer checks that -tokens without a size applies to the device's
// default layer.
func TestTokensOfTheDefaultLayer(t *testing.T) {
	for _, gpu := range []bool{false, true} {
		j, err := parse(t.Context(), []string{"-tokens", "24"}, io.Discard)
		require.NoError(t, err)
		require.NoError(t, j.suit(gpu, io.Discard))
		assert.Equal(t, 24, j.config.TokensHint)
		assert.NotZero(t, j.config.Hidden)
	}
}

// TestForeignChoicesFileStays checks that a file that is not a file of choices stays unchanged.
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

func TestFilesAreBounded(t *testing.T) {
	hostile.Refuses(t, func(path string) error {
		return run(t.Context(), []string{"-device", "emulated", "-histogram", path}, io.Discard, io.Discard)
	})
	hostile.Refuses(t, func(path string) error {
		return run(t.Context(), []string{"-device", "emulated", "-choices", path}, io.Discard, io.Discard)
	})
}
