package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/examples/internal/rung/rungtest"
)

func TestRun(t *testing.T) {
	parts := strings.Split(rungtest.Output(t, run), "\n\n")
	require.Len(t, parts, 3)
	require.Contains(t, parts[0], "No mistake: the sum of 0 to 4 is 10")
	const (
		producer = `warp 0 lane 0 \(line \d+ = .*deadlock/main\.go:\d+\) waits at mbarrier .*\+ 0x10\) for the phase of parity 0`
		consumer = `warp 1 lane 0 \(line \d+ = .*deadlock/main\.go:\d+\) waits at mbarrier .*\+ 0x8\) for the phase of parity `
	)
	require.Regexp(t, `^The consumer never releases the stage: deadlock, nothing can run:\n +`+producer+`.*\n +`+consumer+"1", parts[1])
	require.Regexp(t, `^The producer starts with the consumer's parity: deadlock, nothing can run:\n +`+producer+`.*\n +`+consumer+"0", parts[2])
}

func TestRefusesGPU(t *testing.T) {
	var out strings.Builder
	err := run([]string{"-device", "cuda"}, &out, io.Discard)
	require.EqualError(t, err, "-device is cuda, must be emulated: these kernels never end, and a GPU would hang")
	require.Empty(t, out.String())
}

func TestAssembles(t *testing.T) {
	for _, m := range []mistake{none, neverReleases, wrongPhase} {
		rungtest.Assembles(t, relay(m))
	}
}
