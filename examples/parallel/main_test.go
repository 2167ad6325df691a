package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRanks checks the line that is printed for each rank, and that the results have the same
// bits as on one device.
func TestRanks(t *testing.T) {
	var out, errs bytes.Buffer
	args := []string{"-device", "emulated", "-cache", "off", "-runs", "1", "-shape", "64,48,7,3", "-tokens", "9"}
	require.NoError(t, run(t.Context(), append(args, "-ranks", "3"), &out, &errs), errs.String())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 12)
	for _, want := range []string{"rank 0  experts 0-1  9 tokens", "rank 1  experts 2-3", "rank 2  experts 4-6", "forward ", "backward ", "GB/s each way", "saved 0.00 GiB"} {
		require.Contains(t, out.String(), want)
	}
	require.Equal(t, 3, strings.Count(out.String(), "bits of one device"))
	require.Empty(t, errs.String())
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-transport", "pigeon"}, "want local or nccl"},
		{[]string{"-device", "emulated", "-transport", "nccl"}, "NCCL does not run on the emulated device"},
		{[]string{"-runs", "0"}, "want 0 or more ranks and 1 or more runs"},
		{[]string{"-device", "emulated", "-cache", "off", "-ranks", "11"}, "so that each rank has an expert"},
		{[]string{"-shape", "64,48,7,3"}, "needs -tokens"},
	} {
		var out, errs bytes.Buffer
		require.ErrorContains(t, run(t.Context(), c.args, &out, &errs), c.want)
	}
}
