package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run([]string{"-device", "emulated"}, &out, io.Discard))
	listing, wrong, found := strings.Cut(out.String(), "Build says:")
	require.True(t, found)
	refused, broken, found := strings.Cut(wrong, "The emulated device says:")
	require.True(t, found)

	require.Regexp(t, `fma\.rn\.f32 .*// listing/main\.go:\d+`, listing)
	require.Regexp(t, `listing/main\.go:\d+.*: bar\.sync needs the whole warp.* after listing/main\.go:\d+`, refused)
	require.Regexp(t, `listing/main\.go:\d+.*of a zero value: nothing computed it`, refused)
	require.Regexp(t, `listing/main\.go:\d+.*PTX line \d+.*access out of bounds`, broken)
}
