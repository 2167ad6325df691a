package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/open"
	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/outside"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/tools"
)

// warmup runs the command, which must end with the given exit code, and returns its output.
func warmup(t *testing.T, code int, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	require.Equal(t, code, program.Exit(run(t.Context(), args, &out, &errs), &errs), "%v\n%s%s", args, out.String(), errs.String())
	if code == command.Done {
		return out.String()
	}
	return errs.String()
}

// TestFillAndCarry takes a model's config.json through all steps to a fleet: fill, verify,
// export, import, list and prune.
func TestFillAndCarry(t *testing.T) {
	outside.Ptxas(t)
	t.Setenv("SONICMOE_CACHE", "off")
	dir := t.TempDir()
	config, from, bundle, to := filepath.Join(dir, "config.json"), filepath.Join(dir, "from"), filepath.Join(dir, "warm.tar"), filepath.Join(dir, "to")
	require.NoError(t, os.WriteFile(config, []byte(`{"model_type":"mixtral","hidden_size":128,"intermediate_size":64,"num_local_experts":4,"num_experts_per_tok":2,"num_hidden_layers":1,"torch_dtype":"bfloat16"}`), 0o600))

	hints, tokens := []int{0, 1, 100, 5000, 40960}, []string{} // all hints, and the numbers of tokens as flags
	if testing.Short() {
		hints, tokens = []int{64}, []string{"-tokens", "64"}
	}

	out := warmup(t, command.Done, append([]string{"fill", "-config", dir, "-cache", from, "-export", bundle}, tokens...)...)
	assert.Contains(t, out, "mixtral: d=128 n=64 E=4 K=2")
	assert.Contains(t, out, " 0 there already")
	assert.Contains(t, out, "bundle         "+bundle)
	out = warmup(t, command.Done, append([]string{"fill", "-config", config, "-cache", from}, tokens...)...)
	assert.Contains(t, out, ": 0 kernels compiled")
	assert.Contains(t, warmup(t, command.Done, "verify", bundle), "sound bundle")
	out = warmup(t, command.Done, "import", "-cache", to, bundle)
	assert.Contains(t, out, " 0 there already")

	lists := map[string]string{}
	for _, place := range []string{from, bundle, to} {
		lists[place] = warmup(t, command.Done, "list", place)
		assert.Contains(t, lists[place], "[ptxas ")
		assert.Contains(t, warmup(t, command.Done, "verify", place), "sound")
	}
	assert.Equal(t, strings.Count(lists[from], "\n"), strings.Count(lists[bundle], "\n"))
	again := filepath.Join(dir, "again.tar")
	warmup(t, command.Done, "export", "-cache", to, again)
	a, err := os.ReadFile(bundle)
	require.NoError(t, err)
	b, err := os.ReadFile(again)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(a, b), "what was carried is what was made")
	requireAll(t, bundle, hints)

	assert.Contains(t, warmup(t, command.Done, "prune", "-cache", to, "-max-age", "24h"), " 0 files removed")
	assert.Contains(t, warmup(t, command.Done, "prune", "-cache", to, "-all"), " 0.0 KiB left")
	assert.Contains(t, warmup(t, command.Done, "list", to), "0 files")
}

// requireAll fails the test unless the bundle has machine code for every kernel that New
// compiles, with each of the hints.
func requireAll(t *testing.T, bundle string, hints []int) {
	t.Helper()
	c := cache.Open(cache.Options{Dir: bundle, ReadOnly: true})
	by, err := jit.Ptxas(context.Background(), "sm_90a")
	require.NoError(t, err)
	for _, hint := range hints {
		sources, err := tools.Sources(driver.H200(), moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, TokensHint: hint})
		require.NoError(t, err)
		err = jit.Warm(context.Background(), c, "sm_90a", sources, jit.WarmOptions{By: by, Progress: func(w jit.Warmed) {
			assert.NotEqual(t, jit.Compiled, w.Origin, w.Label)
		}})
		require.NoError(t, err, "nothing is left to store")
	}
}

// TestPTXOnly checks that PTX is stored if there is neither an assembler nor a GPU, and that a
// device compiles the stored PTX.
func TestPTXOnly(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PTXAS", filepath.Join(dir, "none"))
	out := warmup(t, command.Done, "fill", "-shape", "128,64,4,2", "-ptx-only", "-cache", dir, "-bar")
	assert.Regexp(t, `\d+ kernels stored as PTX, 0 there already`, out)
	assert.Contains(t, warmup(t, command.Done, "list", dir), "[PTX only]")
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	defer dev.Close()
	defer jit.Forget(dev)
	l, err := moe.New(context.Background(), dev, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}, moe.WithCache(cache.Open(cache.Options{Dir: dir})))
	require.NoError(t, err)
	for kernel, origin := range l.LoadedFrom() {
		assert.Equal(t, jit.Compiled.String(), origin, kernel)
	}
	assert.NotContains(t, strings.SplitN(warmup(t, command.Done, "list", "-files", dir), "\n", 2)[0], "[PTX only]", "and keeps what it compiled")
}

func TestDamageIsReported(t *testing.T) {
	dir := t.TempDir()
	from, bundle := filepath.Join(dir, "from"), filepath.Join(dir, "warm.tar")
	warmup(t, command.Done, "fill", "-shape", "128,64,4,2", "-tokens", "64", "-ptx-only", "-cache", from, "-export", bundle)
	b, err := os.ReadFile(bundle)
	require.NoError(t, err)
	b[len(b)/2] ^= 1
	require.NoError(t, os.WriteFile(bundle, b, 0o600))
	to := filepath.Join(dir, "to")
	assert.Contains(t, warmup(t, command.Failed, "verify", bundle), "not a sound bundle")
	assert.Contains(t, warmup(t, command.Failed, "import", "-cache", to, bundle), "not a sound bundle")
	assert.Contains(t, warmup(t, command.Done, "list", to), "0 files")

	files, err := filepath.Glob(filepath.Join(from, "entries", "*.module"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(files[0], []byte("x"), 0o600))
	assert.Contains(t, warmup(t, command.Done, "list", from), "damaged")
	assert.Contains(t, warmup(t, command.Failed, "verify", from), "1 damaged files")
	warmup(t, command.Done, "verify", from)
}

func TestUsage(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		code int
		args []string
		say  string
	}{
		{command.Misuse, nil, `the command is missing, want one of fill, export, import, list, verify, prune`},
		{command.Misuse, []string{"boil"}, `the command is "boil", want one of fill, `},
		{command.Misuse, []string{"fill", "-no"}, "-no"},
		{command.Misuse, []string{"fill", "layer"}, "is no flag"},
		{command.Misuse, []string{"fill", "-cache", dir}, "no layers"},
		{command.Misuse, []string{"fill", "-shape", "1,2"}, "must be d,n,E,K"},
		{command.Misuse, []string{"fill", "-shape", "128,64,4,2", "-arch", "sm_80"}, "sm_90a"},
		{command.Misuse, []string{"fill", "-shape", "128,64,4,2", "-gpu", "A100"}, "H200 or H100"},
		{command.Misuse, []string{"fill", "-shape", "128,64,4,2", "-by", "hand"}, "auto, ptxas or driver"},
		{command.Misuse, []string{"fill", "-shape", "128,64,4,2", "-sms", "-1"}, "-sms"},
		{command.Misuse, []string{"fill", "-shape", "128,64,4,2", "-logits", "f64"}, "logits"},
		{command.Failed, []string{"fill", "-shape", "100,64,4,2", "-ptx-only", "-cache", dir}, "Config.Hidden"},
		{command.Failed, []string{"fill", "-config", filepath.Join(dir, "none")}, "no such file"},
		{command.Failed, []string{"fill", "-shape", "128,64,4,2", "-ptx-only", "-cache", "off"}, "no cache directory"},
		{command.Misuse, []string{"import"}, "one bundle"},
		{command.Failed, []string{"import", "-cache", dir, filepath.Join(dir, "none")}, "no such file"},
		{command.Misuse, []string{"export", "-cache", dir, "a", "b"}, "one bundle"},
		{command.Failed, []string{"verify", filepath.Join(dir, "none")}, "none: no such file"},
		{command.Failed, []string{"list", filepath.Join(dir, "none")}, "none: no such file"},
		{command.Misuse, []string{"list", "a", "b"}, "one directory or bundle"},
		{command.Misuse, []string{"prune", "x"}, "no flag"},
		{command.Misuse, []string{"prune", "-max-mb", "-1"}, "-max-mb is -1"},
		{command.Failed, []string{"prune", "-cache", "off"}, "no cache directory"},
		{command.Misuse, []string{"prune", "-all", "-max-mb", "5"}, "want one of them"},
		{command.Misuse, []string{"fill", "-shape", "128,64,4,2", "-ptx-only", "-by", "driver"}, "-by driver and -ptx-only are given"},
		{command.Misuse, []string{"fill", "-shape", "128,64,4,2", "-sizes-only"}, "need a -config"},
		{command.Misuse, []string{"fill", "-shape", "128,64,4,2", "-experts-only"}, "need a -config"},
		{command.Misuse, []string{"verify", "-by", "driver", dir}, "-by needs -recompile"},
	} {
		assert.Contains(t, warmup(t, c.code, c.args...), c.say, "%v", c.args)
	}
	for _, args := range [][]string{{"help"}, {"-h"}, {"fill", "-h"}} {
		assert.Contains(t, warmup(t, command.Done, args...), "-ptx-only")
	}
}

// TestWordsOfPTX checks that fill, export and prune say what a cache that holds only PTX saves,
// and that prune names the layers that it leaves incomplete.
func TestWordsOfPTX(t *testing.T) {
	dir := t.TempDir()
	from, bundle := filepath.Join(dir, "from"), filepath.Join(dir, "warm.tar")
	out := warmup(t, command.Done, "fill", "-shape", "128,64,4,2", "-tokens", "64", "-ptx-only", "-cache", from)
	assert.Contains(t, out, "machine code   none made: PTX alone saves its writing, a part of a second, and no compilation")
	out = warmup(t, command.Done, "export", bundle, "-cache", from) // flags after the argument
	assert.Regexp(t, `PTX alone      \d+ modules: the first start on a GPU compiles them`, out)
	out = warmup(t, command.Done, "prune", "-max-mb", "1", "-cache", from)
	assert.Regexp(t, `incomplete     d=128 n=64 E=4 K=2 .*: \d+ of \d+ modules left, the next start compiles the others`, out)
	assert.NotContains(t, warmup(t, command.Done, "prune", "-max-mb", "1", "-cache", from), "incomplete")
	marked := regexp.MustCompile(`incomplete .*\n`).FindString(out)
	assert.Contains(t, warmup(t, command.Done, "list", from), marked, "list marks the same")
	warmup(t, command.Done, "fill", "-shape", "128,64,4,2", "-tokens", "64", "-ptx-only", "-cache", from)
	assert.NotContains(t, warmup(t, command.Done, "list", from), "incomplete", "the layer is whole again")
}

// TestPruneBoundBeyondAll checks that a size limit that is too large for an integer removes
// nothing. Converted to bytes, it would overflow to a negative number, which removes
// everything.
func TestPruneBoundBeyondAll(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, cache.Open(cache.Options{Dir: dir}).PutChoice("a", []byte("b")))
	for _, most := range []string{"8796093022207", "8796093022208", "9223372036854775807"} {
		assert.Contains(t, warmup(t, command.Done, "prune", "-cache", dir, "-max-mb", most), ": 0 files removed", most)
	}
}

// TestBundleBehindNoCacheYet checks that list shows a bundle even if the cache directory that
// comes before the bundle does not exist yet.
func TestBundleBehindNoCacheYet(t *testing.T) {
	dir := t.TempDir()
	from, bundle := filepath.Join(dir, "from"), filepath.Join(dir, "warm.tar")
	require.NoError(t, cache.Open(cache.Options{Dir: from}).PutChoice("a", []byte("b")))
	warmup(t, command.Done, "export", "-cache", from, bundle)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "fresh"))
	t.Setenv("HOME", filepath.Join(dir, "fresh"))
	t.Setenv("SONICMOE_CACHE", string(filepath.ListSeparator)+bundle)
	assert.Contains(t, warmup(t, command.Done, "list"), "1 files")
	warmup(t, command.Done, "export", filepath.Join(dir, "again.tar"))
	t.Setenv("SONICMOE_CACHE", string(filepath.ListSeparator)+bundle+"x")
	assert.Contains(t, warmup(t, command.Failed, "list"), "warm.tarx")
}

// TestCacheIsOff checks that subcommands refuse a cache that is off. An empty result would look
// as if nothing were wrong.
func TestCacheIsOff(t *testing.T) {
	t.Setenv("SONICMOE_CACHE", "off")
	for _, args := range [][]string{{"list"}, {"verify"}, {"export", filepath.Join(t.TempDir(), "warm.tar")}} {
		assert.Contains(t, warmup(t, command.Failed, args...), "the cache is off", "%v", args)
	}
}

func TestNobodyCompiles(t *testing.T) {
	if dev, err := open.Device(context.Background(), "cuda"); err == nil {
		dev.Close()
		t.Skip("there is a GPU here, whose driver compiles")
	}
	say := warmup(t, command.Failed, "fill", "-shape", "128,64,4,2", "-by", "driver", "-cache", t.TempDir())
	assert.Contains(t, say, "-ptx-only")
	t.Setenv("PTXAS", filepath.Join(t.TempDir(), "none"))
	assert.Contains(t, warmup(t, command.Failed, "fill", "-shape", "128,64,4,2", "-by", "ptxas", "-cache", t.TempDir()), "none")
}
