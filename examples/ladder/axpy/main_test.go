package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/examples/internal/rung/rungtest"
)

func TestRun(t *testing.T) {
	out := rungtest.Output(t, run)
	require.Contains(t, out, "device   emulated H200")
	require.Contains(t, out, "391 CTAs of 256 threads for 100003 elements")
	require.Contains(t, out, "y[100002]  0.5 * 2 + 0 = 1")
	require.Contains(t, out, "checked  all 100003 elements")
}

func TestAssembles(t *testing.T) { rungtest.Assembles(t, axpy().Kernel) }
