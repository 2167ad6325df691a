package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestForward(t *testing.T) {
	var out, errs bytes.Buffer
	dir := filepath.Join(t.TempDir(), "cache")
	require.NoError(t, run(t.Context(), []string{"-device", "emulated", "-cache", dir}, &out, &errs), errs.String())
	for _, want := range []string{
		"device         emulated H200", "moe.New cold",
		"first O", "error          against float64", "saved for backward", "this (SonicMoE)", "roofline",
	} {
		require.Contains(t, out.String(), want)
	}
	require.Regexp(t, `moe.New warm +\S+ 0 kernels compiled, [1-9]\d* from the cache`, out.String())
	require.Empty(t, errs.String())
}

// TestListing checks that -listing prints the PTX of the up-projection, with the Go line of
// each instruction.
func TestListing(t *testing.T) {
	var out, errs bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-device", "emulated", "-cache", "off", "-listing", "up"}, &out, &errs), errs.String())
	for _, want := range []string{".visible .entry moe_up(", "wgmma.mma_async.sync.aligned.m64n256k16", "gemm/product.go:", "kernel/up.go:"} {
		require.Contains(t, out.String(), want)
	}
	require.ErrorContains(t, run(t.Context(), []string{"-device", "emulated", "-listing", "sideways"}, &out, &errs), "sideways")
}

func TestSizes(t *testing.T) {
	var out, errs bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-list"}, &out, &errs))
	require.GreaterOrEqual(t, strings.Count(out.String(), "\n"), 16)
	require.ErrorContains(t, run(t.Context(), []string{"-device", "no such"}, &out, &errs), "no such")
	require.ErrorContains(t, run(t.Context(), []string{"-row", "nope"}, &out, &errs), `no size is named "nope"`)
	require.ErrorContains(t, run(t.Context(), []string{"extra"}, &out, &errs), `"extra" is no flag`)
	out.Reset()
	require.NoError(t, run(t.Context(), []string{"-device", "emulated", "-cache", "off", "-shape", "128,64,4,2", "-tokens", "5"}, &out, &errs), errs.String())
	require.Contains(t, out.String(), "T=5 d=128 n=64 E=4 K=2")
	require.Contains(t, out.String(), "error ")
	out.Reset()
	require.NoError(t, run(t.Context(), []string{"-device", "emulated", "-cache", "off", "-row", "qwen3-30b-a3b"}, &out, &errs), errs.String())
	require.Contains(t, out.String(), "T=32768 d=2048 n=768 E=128 K=8")
	require.Contains(t, out.String(), "not run: too large for the emulated device")
}
