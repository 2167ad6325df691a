package main

import (
	"io"
	"os"
	"regexp"
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
		here     = ` \(line \d+ = .*pipeline/ring\.go:\d+ < deadlock/main\.go:\d+\) `
		producer = `producer warp 0 lane 0` + here + `waits at mbarrier empty\[0\] of ring numbers \(0x418\) for the phase of parity 0 .*1 of 1 arrivals`
		consumer = `consumer warp 1 lane 0` + here + `waits at mbarrier full\[0\] of ring numbers \(0x408\) for the phase of parity `
	)
	require.Regexp(t, `^The consumer never releases a stage: deadlock, no warp can run\n +`+producer+`.*\n`+
		` +no warp is left that could arrive there\n +`+consumer+`1.*\n`+
		` +warp 0 should arrive there, as before at line \d+ = deadlock/main\.go:\d+$`, parts[1])
	require.Regexp(t, `^The producer takes the consumer's place in the ring: deadlock, no warp can run\n +`+producer+`.*, in a cycle:\n`+
		` +warp 1 should arrive there at line \d+ = pipeline/ring\.go:\d+ < deadlock/main\.go:\d+, and no warp has yet\n +`+consumer+`0.*\n`+
		` +warp 0 should arrive there at line \d+ = deadlock/main\.go:\d+, and no warp has yet\n$`, parts[2])
}

// TestPage checks that debug-a-kernel.md contains the program's output, except for line
// numbers.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../emulate/debug-a-kernel.md")
	require.NoError(t, err)
	lines := regexp.MustCompile(`(:|line )\d+`)
	says := strings.Split(rungtest.Output(t, run), "\n\n")[1]
	require.Contains(t, lines.ReplaceAllString(string(page), ""), lines.ReplaceAllString(says, ""))
}

func TestRefusesGPU(t *testing.T) {
	var out strings.Builder
	err := run(t.Context(), []string{"-device", "cuda"}, &out, io.Discard)
	require.EqualError(t, err, "-device is cuda, must be emulated: these kernels never end, and a GPU would hang")
	require.Empty(t, out.String())
}

func TestAssembles(t *testing.T) {
	for _, m := range []mistake{none, neverReleases, wrongPhase} {
		rungtest.Assembles(t, relay(m).Kernel)
	}
}
