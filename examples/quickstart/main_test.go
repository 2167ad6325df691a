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
	require.NoError(t, run([]string{"-device", "emulated", "-cache", dir}, &out, &errs), errs.String())
	for _, want := range []string{
		"device         emulated H200", "moe.New cold", "moe.New warm", "0 kernels compiled, 7 from the cache",
		"first O", "error          against float64", "saved for backward", "this (SonicMoE)", "roofline",
	} {
		require.Contains(t, out.String(), want)
	}
	require.Empty(t, errs.String())
}

// The listing leads from Forward to the PTX of the up-projection with its Go
// lines.
func TestListing(t *testing.T) {
	var out, errs bytes.Buffer
	require.NoError(t, run([]string{"-device", "emulated", "-cache", "off", "-listing", "up"}, &out, &errs), errs.String())
	for _, want := range []string{".visible .entry moe_up(", "wgmma.mma_async.sync.aligned.m64n256k16", "gemm/product.go:", "kernel/up.go:"} {
		require.Contains(t, out.String(), want)
	}
	require.ErrorContains(t, run([]string{"-device", "emulated", "-listing", "sideways"}, &out, &errs), "sideways")
}

func TestRows(t *testing.T) {
	var out, errs bytes.Buffer
	require.NoError(t, run([]string{"-rows"}, &out, &errs))
	require.GreaterOrEqual(t, strings.Count(out.String(), "\n"), 16)
	require.ErrorContains(t, run([]string{"-device", "no such"}, &out, &errs), "no such")
}
