package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/examples/internal/rung/rungtest"
)

func TestRun(t *testing.T) {
	out := rungtest.Output(t, run)
	require.Contains(t, out, "64 x 96 x 64 by 4 wgmma.m64n96k16, 48 floats of it in each thread")
	require.Contains(t, out, "checked  all 6144 elements against float64")
}

func TestAssembles(t *testing.T) { rungtest.Assembles(t, multiply().Kernel) }
