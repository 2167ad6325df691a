package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/hostile"
	"sonicmoe/ptx/emu"
)

const kernelFile, launchFile = "testdata/sum.ptx", "testdata/sum.json"

func arguments(kernel, launch string, more ...string) []string {
	return append([]string{"-ptx", kernel, "-launch", launch}, more...)
}

// TestFindsTheRace checks that the finding names the forgotten barrier and the source lines of
// both accesses. debug-a-kernel.md contains the message word for word.
func TestFindsTheRace(t *testing.T) {
	err := run(t.Context(), arguments(kernelFile, launchFile), io.Discard, io.Discard)
	var found *emu.Findings
	require.True(t, errors.As(err, &found), "%v", err)
	runs := 0
	for _, x := range found.List {
		assert.Equal(t, emu.Race, x.Kind)
		runs += x.Runs
	}
	assert.Equal(t, found.Runs, runs, "each run finds it")
	guide, readErr := os.ReadFile("debug-a-kernel.md")
	require.NoError(t, readErr)
	for _, line := range strings.Split(err.Error(), "\n") {
		assert.Contains(t, string(guide), line)
	}
}

// mend writes a file of the kernel with the missing barrier added, as debug-a-kernel.md
// describes.
func mend(t *testing.T) (file string) {
	text, err := os.ReadFile(kernelFile)
	require.NoError(t, err)
	file = filepath.Join(t.TempDir(), "mended.ptx")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), "\t.loc 1 8 3\n", "\tbar.sync 0;\n\t.loc 1 8 3\n", 1)), 0o600))
	return file
}

// TestMended checks that the kernel with the barrier gives the right sums.
func TestMended(t *testing.T) {
	mended := mend(t)
	for _, args := range [][]string{arguments(mended, launchFile), arguments(mended, launchFile, "-check", "0"), arguments(mended, launchFile, "-explore", "9")} {
		var out strings.Builder
		require.NoError(t, run(t.Context(), args, &out, io.Discard))
		assert.Contains(t, out.String(), "kernel sum: nothing found in ")
		assert.Contains(t, out.String(), "out: 2016 6112 10208\n")
	}
}

// TestNaN checks that with -nan a kernel that computes an infinity causes a note, and that the
// program still succeeds.
func TestNaN(t *testing.T) {
	text, err := os.ReadFile(mend(t))
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "nan.ptx")
	big := strings.Replace(string(text), "\tst.global.u32 [%d3], %r6;", "\t.reg .f32 %f;\n\tmov.f32 %f, 0f7F7FFFFF;\n\tadd.rn.f32 %f, %f, %f;\n\tst.global.u32 [%d3], %r6;", 1)
	require.NoError(t, os.WriteFile(file, []byte(big), 0o600))
	err = run(t.Context(), arguments(file, launchFile, "-nan", "-fail", "note"), io.Discard, io.Discard)
	assert.ErrorContains(t, err, "makes +Inf")
	assert.Equal(t, command.Failed, command.Code(err))
	for flag, says := range map[string]string{"-nan": "not finite (note): add.rn makes +Inf, the first of the cluster that is not finite (6 of 6 runs", "-keep": "nothing found"} {
		var out strings.Builder
		require.NoError(t, run(t.Context(), arguments(file, launchFile, flag), &out, io.Discard))
		assert.Contains(t, out.String(), says)
	}
}

// TestReport checks that a report says what the kernel did, with and without a fault.
// debug-a-kernel.md contains the report word for word.
func TestReport(t *testing.T) {
	guide, err := os.ReadFile("debug-a-kernel.md")
	require.NoError(t, err)
	var out strings.Builder
	require.NoError(t, run(t.Context(), arguments(mend(t), launchFile, "-report", "all"), &out, io.Discard))
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		assert.Contains(t, string(guide), line+"\n")
	}
	for part, begins := range map[string]string{"conflicts": "wavefronts", "sectors": "sectors", "bytes": "bytes", "mix": "instructions", "timeline": "CTA (0,0,0)"} {
		out.Reset()
		require.Error(t, run(t.Context(), arguments(kernelFile, launchFile, "-report", part), &out, io.Discard))
		assert.Contains(t, out.String(), "not times\nThe kernel did not end; counts stop at its fault: uninitialized shared memory in line 37\n\n"+begins, part)
	}
	err = run(t.Context(), arguments(kernelFile, launchFile, "-report", "bytes,times"), io.Discard, io.Discard)
	assert.Equal(t, command.Misuse, command.Code(err))
	assert.ErrorContains(t, err, `-report names "times", must be some of [bytes conflicts`)
}

// TestWrongArguments checks that errors name the mistakes in the launch file, and that
// -timeout ends a run.
func TestWrongArguments(t *testing.T) {
	launch, err := os.ReadFile(launchFile)
	require.NoError(t, err)
	for replace, says := range map[string]string{
		`"kernel": "sum"|"kernel": "som"`:                            `no kernel "som"`,
		`"grid"|"gird"`:                                              "gird",
		`"grid"|"block": [1], "grid"`:                                "the field block stands twice",
		`"type": "u32", "show"|"type": "u32", "Type": "f32", "show"`: "the field buffers.out.Type stands twice",
		`{"buffer": "out"}|{"u32": 1}`:                               "param 1, sum_out: 4 bytes, the kernel takes 8",
		`{"buffer": "out"}|{}`:                                       "must be one of buffer",
		`{"buffer": "out"}|{"buffer": "o"}`:                          `no buffer "o"`,
		`, {"buffer": "out"}|`:                                       "1 params, kernel sum takes 2",
		`"ramp"|"slope"`:                                             `fill "slope"`,
		`"block": [64]|"block": [65]`:                                ".maxntid allows 64",
		`{"buffer": "out"}|{"map": {"type": "i4"}}`:                  `type "i4"`,
		`{"buffer": "out"}|{"map": {"type": "f32", "buffer": "in", "dims": [8], "box": [8, 1]}}`: "1 dims, 2 box",
	} {
		old, mistake, _ := strings.Cut(replace, "|")
		file := filepath.Join(t.TempDir(), "launch.json")
		require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(launch), old, mistake, 1)), 0o600))
		assert.ErrorContains(t, run(t.Context(), arguments(kernelFile, file), io.Discard, io.Discard), says, replace)
	}
	assert.Equal(t, command.Misuse, command.Code(run(t.Context(), []string{"-ptx", kernelFile}, io.Discard, io.Discard)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, run(ctx, arguments(kernelFile, launchFile), io.Discard, io.Discard), context.Canceled)
}

func TestFilesAreBounded(t *testing.T) {
	hostile.Refuses(t, func(path string) error {
		return run(t.Context(), []string{"-ptx", path, "-launch", "testdata/sum.json"}, io.Discard, io.Discard)
	})
	hostile.Refuses(t, func(path string) error {
		return run(t.Context(), []string{"-ptx", "testdata/sum.ptx", "-launch", path}, io.Discard, io.Discard)
	})
}

// TestFormats checks that findings are written as text, JSON or SARIF. With -keep all findings
// are written, and findings that a file lists as known are left out. A finding's timing and
// seed must reproduce the finding in one run.
func TestFormats(t *testing.T) {
	list := func(args ...string) (out string, err error) {
		var b strings.Builder
		err = run(t.Context(), arguments(kernelFile, launchFile, args...), &b, io.Discard)
		return b.String(), err
	}
	out, err := list("-format", "json")
	require.ErrorContains(t, err, "1 finding")
	var found struct{ Findings []finding }
	require.NoError(t, json.Unmarshal([]byte(out), &found))
	require.NotEmpty(t, found.Findings)
	all, _ := list("-format", "json", "-keep")
	assert.Greater(t, strings.Count(all, `"rule"`), 0)
	out, err = list("-format", "sarif")
	require.Error(t, err)
	var sarif struct {
		Runs []struct {
			Results []struct{ RuleID, Level string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &sarif))
	require.Len(t, sarif.Runs[0].Results, len(found.Findings))
	assert.Equal(t, "race error", sarif.Runs[0].Results[0].RuleID+" "+sarif.Runs[0].Results[0].Level)

	var lines []string
	for _, x := range found.Findings {
		lines = append(lines, fmt.Sprintf("%d %s", x.Line, x.Rule))
		_, err := list("-timing", x.Timing, "-seed", fmt.Sprint(x.Seed))
		assert.ErrorContains(t, err, fmt.Sprintf("PTX line %d", x.Line), "replayed")
	}
	file := filepath.Join(t.TempDir(), "known")
	require.NoError(t, os.WriteFile(file, []byte("# the guide's race\n"+strings.Join(lines, "\n")+"\n"), 0o600))
	out, err = list("-known", file, "-format", "json")
	if err == nil {
		assert.NotContains(t, out, `"rule"`)
	} else { // the next line belongs to the same race
		for _, line := range lines {
			number, _, _ := strings.Cut(line, " ")
			assert.NotContains(t, out, `"line": `+number+",")
		}
	}
	require.NoError(t, os.WriteFile(file, []byte("race 37\n"), 0o600))
	_, err = list("-known", file)
	assert.ErrorContains(t, err, "want a line of the PTX and a rule")
	for _, args := range [][]string{{"-format", "xml"}, {"-timing", "never"}, {"-fail", "always"}} {
		_, err = list(args...)
		assert.Equal(t, command.Misuse, command.Code(err), args)
	}
}

// TestStatic checks that the program needs no device: without cgo it is a static binary.
func TestStatic(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	for _, heavy := range []string{"purego", "sonicmoe/driver", "sonicmoe/moe\n"} {
		assert.NotContains(t, string(out), heavy)
	}
}
