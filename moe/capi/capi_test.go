package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"aead.dev/minisign"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/internal/outside"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// built is the shared library, built once for all tests.
var built struct {
	sync.Once
	folder, file string
	err          error
}

// library returns the path of the shared library.
func library(t *testing.T) string {
	t.Helper()
	outside.CC(t)
	if testing.Short() {
		t.Skip("building the shared library takes a minute")
	}
	if runtime.GOOS == "windows" {
		t.Skip("the tests' programs are for systems with a cc")
	}
	built.Do(func() {
		if built.folder, built.err = os.MkdirTemp("", "sonicmoe-capi"); built.err != nil {
			return
		}
		built.file = filepath.Join(built.folder, "libsonicmoe.so")
		build := exec.Command("go", "build", "-ldflags=-s -w", "-buildmode=c-shared", "-o", built.file, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=1")
		if out, err := build.CombinedOutput(); err != nil {
			built.err = &exec.Error{Name: string(out), Err: err}
		}
	})
	require.NoError(t, built.err)
	return built.file
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.folder != "" {
		_ = os.RemoveAll(built.folder)
	}
	os.Exit(code)
}

// run compiles a C program with the library, runs it and returns its output.
func run(t *testing.T, source string, args ...string) string {
	t.Helper()
	lib := library(t)
	bin := filepath.Join(t.TempDir(), "program")
	cc := exec.Command(outside.CC(t), "-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-I.",
		source, lib, "-lm", "-lpthread", "-Wl,-rpath,"+filepath.Dir(lib), "-o", bin)
	out, err := cc.CombinedOutput()
	require.NoError(t, err, "%s", out)

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	program := exec.CommandContext(ctx, bin, args...)
	program.Env = append(os.Environ(), "SONICMOE_CACHE="+filepath.Join(t.TempDir(), "cache"))
	var printed, failed bytes.Buffer
	program.Stdout, program.Stderr = &printed, &failed
	require.NoError(t, program.Run(), "%s%s", printed.String(), failed.String())
	require.Empty(t, failed.String())
	return printed.String()
}

// TestExampleInC runs the example program, which checks its own results.
func TestExampleInC(t *testing.T) {
	out := run(t, filepath.Join("..", "..", "examples", "c", "layer.c"), "emulated")
	assert.Contains(t, out, "forward: 24 tokens")
	assert.Contains(t, out, "backward: ")
}

// TestRoundingInC runs a program that rounds at random. The program checks that lists consist of
// whole tiles, and that O is the sum over the lists.
func TestRoundingInC(t *testing.T) {
	out := run(t, filepath.Join("testdata", "rounding.c"))
	assert.Contains(t, out, "seeds: ")
	assert.Contains(t, out, "forward: ")
	assert.Contains(t, out, "backward: ")
	assert.Contains(t, out, "one list for both: status 1: List.")
}

// TestSharedExpertInC runs a program that passes the weights of a shared expert, and checks its
// output and gradients.
func TestSharedExpertInC(t *testing.T) {
	out := run(t, filepath.Join("testdata", "shared.c"))
	assert.Contains(t, out, "without: status 1: SharedW1.Ptr is 0")
	assert.Contains(t, out, "forward: ")
	assert.Contains(t, out, "backward: ")
}

// TestBalancingInC runs a program that balances the experts' loads in two ways: by the balance loss
// of sequences, and by steps of the selection bias.
func TestBalancingInC(t *testing.T) {
	out := run(t, filepath.Join("testdata", "balance.c"), "emulated")
	assert.Contains(t, out, "balance loss of sequences of 8 tokens")
	assert.Contains(t, out, "sequence: status 1: Sequence is 5, must be 0, or a divisor of the 24 tokens")
	assert.Contains(t, out, "0 of 4 experts wrong")
	assert.Contains(t, out, "no ids: status 1: ids.Ptr is 0")
	assert.Contains(t, out, "rate: status 1: rate is NaN")
}

// TestGraphsInC runs a program that checks when graphs are launched without Go: only for the pass of
// the graph, never twice at the same time, and not after the graph was dropped.
func TestGraphsInC(t *testing.T) {
	assert.Equal(t, "ran\n", run(t, filepath.Join("testdata", "graphs.c")))
}

// TestPackedInC runs a program that compares packed weights, both as published and arranged in
// units, with plain weights.
func TestPackedInC(t *testing.T) {
	out := run(t, filepath.Join("testdata", "packed.c"))
	assert.Contains(t, out, "no scales: status 1: W1Scale.Ptr is 0")
	assert.Contains(t, out, "few bytes: status 1: Units is ")
	assert.Contains(t, out, "packed: the outputs are equal")
}

// TestAdaptersInC runs a program with a table of adapters, and with one adapter that is trained.
func TestAdaptersInC(t *testing.T) {
	out := run(t, filepath.Join("testdata", "adapters.c"))
	assert.Contains(t, out, "no ids: status 1: AdapterIDs.Ptr is 0")
	assert.Contains(t, out, "table: only tokens with an adapter changed, misses counted")
	assert.Contains(t, out, "no table: status 1: LoraA1 is ")
	assert.Contains(t, out, "lora_u: the gradients are equal")
}

// TestSignedBundlesInC checks that a program that has set a key can add only signed bundles, and no
// directories.
func TestSignedBundlesInC(t *testing.T) {
	public, key, err := minisign.GenerateKey(nil)
	require.NoError(t, err)
	dir := t.TempDir()
	filled := cache.Open(cache.Options{Dir: filepath.Join(dir, "filled")})
	require.NoError(t, moe.Warm(t.Context(), filled, driver.H200(), moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}))
	signed, unsigned := filepath.Join(dir, "signed.tar"), filepath.Join(dir, "unsigned.tar")
	for _, path := range []string{signed, unsigned} {
		_, err := filled.ExportFile(t.Context(), path)
		require.NoError(t, err)
	}
	data, err := os.ReadFile(signed)
	require.NoError(t, err)
	r := minisign.NewReader(bytes.NewReader(data))
	_, err = io.Copy(io.Discard, r)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(signed+".minisig", r.SignWithComments(key, "timestamp:1\tfile:signed.tar", ""), 0o600))

	out := run(t, filepath.Join("testdata", "signed.c"), public.String(), signed, unsigned, filled.Dir())
	assert.Contains(t, out, "key\t0\t")
	assert.Contains(t, out, "\n"+signed+"\t0\t\n")
	assert.Contains(t, out, "\n"+unsigned+"\t1\t")
	assert.Contains(t, out, "the bundle has no signature")
	assert.Contains(t, out, "which no signature covers")
	assert.Contains(t, out, "layer\t0\t")
}

// TestWrongUseInC checks that each wrong use returns a status and a text, and that the process
// continues.
func TestWrongUseInC(t *testing.T) {
	const ok, invalid, failed = "0", "1", "6"
	want := []struct{ name, status, words string }{
		{"open NULL", invalid, "is NULL"},
		{"open nowhere", invalid, "is NULL"},
		{"open unknown", invalid, "abacus"},
		{"layer without device", invalid, "device is 0, must be the handle of an open device"},
		{"layer of a wild device", invalid, "12345, which was never given"},
		{"open", ok, ""},
		{"config NULL", invalid, "config is NULL"},
		{"layer nowhere", invalid, "layer is NULL"},
		{"config size", invalid, "config->size is 0, must be sizeof"},
		{"config beyond any version", invalid, "config->size is 1048576, must be sizeof"},
		{"config cut within a field", invalid, "config->size is 100"},
		{"hidden", invalid, "Config.Hidden is 100"},
		{"activation", invalid, "Config.Activation is 256"},
		{"model NULL", invalid, "json is NULL"},
		{"model unknown", invalid, "abacus"},
		{"store nowhere", invalid, "folder or path is NULL"},
		{"store no model", failed, "config.json"},
		{"stored NULL", invalid, "path is NULL"},
		{"stored no layer", failed, "sonicmoe.h"},
		{"model with more", invalid, "SparseMixer"},
		{"model", ok, ""},
		{"model, fields", ok, ""},
		{"newer program, half a word", invalid, "config->size is"},
		{"newer program", ok, ""},
		{"newer field", invalid, "must be 0 beyond"},
		{"sizes of a device", invalid, "of a device, must be the handle of an open layer"},
		{"sizes of -1", invalid, "-1"},
		{"sizes NULL", invalid, "sizes is NULL"},
		{"older program", ok, ""},
		{"older program, rest", ok, ""},
		{"list of none", invalid, "Config.Lists is false"},
		{"pass NULL", invalid, "pass is NULL"},
		{"pass of nothing", invalid, "X.Ptr is 0"},
		{"pass cut within a field", invalid, "pass->size is 100"},
		{"x off", invalid, "X.Ptr is 0x18, must be a multiple of 16"},
		{"tokens", invalid, "T·K below 2^31"},
		{"bias of none", invalid, "B1"},
		{"biased", ok, ""},
		{"no bias", invalid, "B1.Ptr is 0"},
		{"close biased", ok, ""},
		{"no backward", invalid, "WithoutBackward"},
		{"pass cut within a gradient", invalid, "pass->size is"},
		{"older pass", invalid, "WithoutBackward"},
		{"gradient type", invalid, "DW1.type is -1"},
		{"alloc -1", invalid, "-1"},
		{"alloc", ok, ""},
		{"write NULL", invalid, "host memory is NULL"},
		{"write too much", invalid, ""},
		{"read -1", invalid, "bytes is -1"},
		{"free", ok, ""},
		{"free again", invalid, ""},
		{"warm which", invalid, "B200"},
		{"bundle NULL", invalid, "path is NULL or empty"},
		{"bundle nowhere", invalid, "nowhere.bundle"},
		{"bundle of C", invalid, "neither a cache directory nor a bundle"},
		{"kernel NULL", invalid, "run or report is NULL"},
		{"kernel no JSON", invalid, "must be the JSON text of a launch"},
		{"kernel no PTX", invalid, "abacus"},
		{"kernel buffer", invalid, "buffer 0 is -1 bytes"},
		{"key NULL", invalid, "key is NULL or empty, must be a public key of minisign"},
		{"key of C", invalid, "want a public key of minisign"},
		{"another thread's text", ok, ""},
		{"child of a fork", failed, "was forked"},
		{"child of a fork, open", failed, "was forked"},
		{"child, end", ok, ""},
		{"close layer", ok, ""},
		{"closed layer", invalid, "which is closed"},
		{"close again", invalid, "handle is"},
		{"open again", ok, ""},
		{"layer again", ok, ""},
		{"close device", ok, ""},
		{"layer of a closed device", invalid, "device is closed"},
		{"closed device", invalid, "which is closed"},
	}
	lines := strings.Split(strings.TrimSpace(run(t, filepath.Join("testdata", "wrong.c"))), "\n")
	require.Len(t, lines, len(want))
	for i, w := range want {
		got := strings.SplitN(lines[i], "\t", 3)
		require.Len(t, got, 3, "%q", lines[i])
		assert.Equal(t, w.name, got[0])
		assert.Equal(t, w.status, got[1], "%s: %s", w.name, got[2])
		assert.Contains(t, got[2], w.words, w.name)
		assert.Equal(t, w.status == ok, got[2] == "", "%s: %q", w.name, got[2])
	}
}

// TestActivationWords checks that the header, the Python package and package spec have the same
// words for activations, with the same numbers.
func TestActivationWords(t *testing.T) {
	header, err := os.ReadFile("sonicmoe.h")
	require.NoError(t, err)
	library, err := os.ReadFile("python/sonicmoe_go/_library.py")
	require.NoError(t, err)

	enum := regexp.MustCompile(`enum \{([^}]*SM_SWIGLU[^}]*)\}`).FindSubmatch(header)
	require.NotNil(t, enum, "no enum of activations in sonicmoe.h")
	tuple := regexp.MustCompile(`"activation": \(([^)]*)\)`).FindSubmatch(library)
	require.NotNil(t, tuple, "no activations in _library.py")

	var numbers, words []string
	for i, a := range spec.Activations {
		numbers = append(numbers, fmt.Sprintf("SM_%s = %d", strings.ToUpper(strings.ReplaceAll(string(a), "-", "_")), i))
		words = append(words, strconv.Quote(string(a)))
	}
	assert.Equal(t, strings.Join(numbers, ", "), strings.Join(strings.Fields(string(enum[1])), " "))
	assert.Equal(t, strings.Join(words, ", "), strings.TrimSuffix(strings.Join(strings.Fields(string(tuple[1])), " "), ","))
}

// TestConfigIsWhole checks that sm_config has every field of package moe's Config, with its name
// and in its order. The fields of Rounding, Weights, and the fields of the adapter are at the end,
// because older programs do not have them.
func TestConfigIsWhole(t *testing.T) {
	text, err := os.ReadFile("sonicmoe.h")
	require.NoError(t, err)
	_, body, _ := strings.Cut(string(text), "typedef struct sm_config {")
	body, _, _ = strings.Cut(body, "}")
	body = regexp.MustCompile(`(?s)/\*.*?\*/|u?int64_t|double`).ReplaceAllString(body, "")
	got := regexp.MustCompile(`\w+`).FindAllString(body, -1)

	// These fields are numbers in C. The numbers 0 and 1 are false and true in Go.
	named := map[string]string{"InOut": "weight_order", "GroupSumOfTwo": "group_score"}
	want, added := []string{"size"}, []string{"without_backward"}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[moe.Config]()) {
		if f.Name == "Weights" || strings.Contains(f.Name, "LoRA") {
			continue
		}
		if f.Type != reflect.TypeFor[moe.Rounding]() {
			want = append(want, cmp.Or(named[f.Name], snake(f.Name)))
			continue
		}
		for _, of := range reflect.VisibleFields(f.Type) {
			added = append(added, snake(f.Name)+"_"+snake(of.Name))
		}
	}
	assert.Equal(t, append(append(want, added...), "weights", "lora_rank", "lora_alpha", "lora_rslora", "lora_adapters"), got)
}

// snake returns the C name of a Go name: TopK becomes top_k, RouterF32 router_f32.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
