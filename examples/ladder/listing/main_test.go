package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/examples/internal/rung/rungtest"
)

func TestRun(t *testing.T) {
	listing, wrong, found := strings.Cut(rungtest.Output(t, run), "Build says:")
	require.True(t, found)
	refused, broken, found := strings.Cut(wrong, "The emulated device says:")
	require.True(t, found)
	for _, c := range []struct{ text, want string }{
		{listing, `fma\.rn\.f32 .*// listing/main\.go:\d+`},
		{refused, `listing/main\.go:\d+.*: bar\.sync needs the whole warp.* after listing/main\.go:\d+`},
		{refused, `listing/main\.go:\d+.* of a zero value: nothing computed it \(listing/main\.go:\d+`},
		{broken, `listing/main\.go:\d+.*PTX line \d+.*access out of bounds`},
	} {
		require.Regexp(t, c.want, c.text)
	}
}

func TestAssembles(t *testing.T) {
	rungtest.Assembles(t, axpy(none).Kernel)
	rungtest.Assembles(t, axpy(unbounded).Kernel) // an assembler cannot see the missing bounds check
}
