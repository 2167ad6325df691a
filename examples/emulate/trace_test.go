package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/examples/internal/command"
)

// TestTrace checks that -trace writes the warps of as many CTAs as -ctas says, also for a kernel
// with a mistake, and that a trace does not change the findings and results.
func TestTrace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.json")
	for name, c := range map[string]struct {
		kernel string
		args   []string
		ctas   int
		finds  string
	}{
		"one CTA":   {mend(t), nil, 1, ""},
		"all CTAs":  {mend(t), []string{"-ctas", "9"}, 3, ""},
		"in random": {mend(t), []string{"-ctas", "2", "-timing", "random", "-seed", "5"}, 2, ""},
		"a race":    {kernelFile, []string{"-ctas", "2"}, 2, "race"},
	} {
		err := run(t.Context(), arguments(c.kernel, launchFile, append(c.args, "-trace", file)...), io.Discard, io.Discard)
		if c.finds == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.finds, name)
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var trace struct {
			TraceEvents []struct {
				Name, Ph string
				PID      int
				Args     struct{ Name, Source string }
			}
		}
		require.NoError(t, json.Unmarshal(text, &trace), name)
		processes, warps, lines := map[string]bool{}, 0, 0
		for _, e := range trace.TraceEvents {
			switch {
			case e.Name == "process_name":
				processes[e.Args.Name] = true
			case e.Name == "thread_name":
				warps++
			case e.Ph == "X" && e.Args.Source != "":
				lines++
			}
		}
		assert.Len(t, processes, c.ctas, name)
		assert.Contains(t, processes, "CTA (0,0,0) of sum", name)
		assert.Equal(t, 2*c.ctas, warps, name)
		assert.GreaterOrEqual(t, lines, warps, name)
	}
	for _, args := range [][]string{{"-ctas", "0"}, {"-timing", "chosen"}} {
		err := run(t.Context(), arguments(kernelFile, launchFile, append(args, "-trace", file)...), io.Discard, io.Discard)
		assert.Equal(t, command.Misuse, command.Code(err), args)
	}
}
