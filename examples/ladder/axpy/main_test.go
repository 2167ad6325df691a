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
	for _, text := range []string{
		"device   emulated H200",
		"391 CTAs of 256 threads for 100003 elements",
		"y[100002]  0.5 * 2 + 0 = 1",
		"checked  all 100003 elements",
	} {
		require.Contains(t, out.String(), text)
	}
}
