package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver/gpu"
	"sonicmoe/examples/internal/rung/rungtest"
)

func TestRun(t *testing.T) {
	out := rungtest.Output(t, run)
	require.Contains(t, out, "no swizzle:\n  row  8  0 1 2 3 4 5 6 7\n  row  9  0 1 2 3 4 5 6 7\n")
	require.Contains(t, out, "128-byte swizzle:\n  row  8  0 1 2 3 4 5 6 7\n  row  9  1 0 3 2 5 4 7 6\n")
	require.Contains(t, out, "row 12  4 5 6 7 0 1 2 3\n  row 13  - - - - - - - -\n")
	require.Contains(t, out, "checked  every element of both boxes")
}

func TestCheck(t *testing.T) {
	require.ErrorContains(t, check(make([]uint16, boxRows*columns), gpu.SwizzleNone), "row 8 column 0 is 0, must be 513")
}

func TestAssembles(t *testing.T) { rungtest.Assembles(t, copyBox(gpu.Swizzle128).Kernel) }
