package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/examples/emulate/fatbin"
	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/outside"
)

// buildLibrary builds package cudart's library, with links under the names of CUDA's libraries.
func buildLibrary(t *testing.T, folder string) (file string) {
	file = filepath.Join(folder, libraryName)
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-buildmode=c-shared", "-o", file, "./cudart")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	_, err = link(folder, file)
	require.NoError(t, err)
	return file
}

// fatBinary returns a fat binary with a PTX text.
func fatBinary(text []byte) []byte {
	le := binary.LittleEndian
	text = append(bytes.Clone(text), make([]byte, 8-len(text)%8)...)
	e := make([]byte, 64)
	le.PutUint16(e, 1)                           // PTX
	le.PutUint32(e[4:], 64)                      // bytes of the entry's header
	le.PutUint64(e[8:], uint64(len(text)))       // bytes of the text
	le.PutUint32(e[28:], 90)                     // the chip
	b := le.AppendUint32(nil, fatbin.Magic)      // header: magic number,
	b = le.AppendUint16(b, 1)                    // version,
	b = le.AppendUint16(b, 16)                   // bytes of the header,
	b = le.AppendUint64(b, uint64(len(text)+64)) // bytes of the content
	return append(append(b, e...), text...)
}

// buildProgram compiles testdata/program.c.
func buildProgram(t *testing.T, folder, name string, flags ...string) (file string) {
	text, err := os.ReadFile("testdata/program.ptx")
	require.NoError(t, err)
	var c strings.Builder
	c.WriteString("static const _Alignas(8) unsigned char fat[] = {")
	for _, b := range fatBinary(text) {
		fmt.Fprintf(&c, "%d,", b)
	}
	c.WriteString("};\n")
	require.NoError(t, os.WriteFile(filepath.Join(folder, "fat.h"), []byte(c.String()), 0o600))
	file = filepath.Join(folder, name)
	args := append([]string{"-std=c11", "-D_GNU_SOURCE", "-O1", "-I", folder, "-o", file, "testdata/program.c"}, flags...)
	out, err := exec.CommandContext(t.Context(), outside.CC(t), args...).CombinedOutput()
	require.NoError(t, err, string(out))
	return file
}

// TestRun runs a program that has been linked with a shared and with a static runtime.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("building the shared library takes seconds to a minute")
	}
	if runtime.GOOS != "linux" {
		t.Skip("package cudart is for Linux")
	}
	outside.CC(t)
	folder := t.TempDir()
	library := buildLibrary(t, folder)
	shared := buildProgram(t, folder, "shared", "-L", folder, "-l:libcudart.so.13", "-ldl")
	static := buildProgram(t, folder, "static", "-DSTATIC", "-ldl")
	start := func(program string, flags ...string) (stdout, stderr string, err error) {
		var o, e bytes.Buffer
		args := append([]string{"-library", library}, flags...)
		err = runProgram(t.Context(), append(args, strings.Fields(program)...), &o, &e)
		return o.String(), e.String(), err
	}
	for _, program := range []string{shared, static} {
		t.Run(filepath.Base(program), func(t *testing.T) {
			for _, flags := range [][]string{nil, {"-check", "2"}} {
				for _, c := range []struct{ scenario, want string }{
					{"add", "thread 3: 12\n"}, {"box", ""}, {"managed", ""}, {"driver", "thread 3: 3\n"}, {"graph", "thread 3: 6\nthread 3: 9\nthread 3: 12\nthread 3: 18\n"},
				} {
					stdout, stderr, err := start(program+" "+c.scenario, flags...)
					require.NoError(t, err, "%s %v\n%s%s", c.scenario, flags, stdout, stderr)
					assert.Equal(t, c.want, stdout, c.scenario)
				}
			}
		})
	}
	t.Run("race", func(t *testing.T) {
		stdout, stderr, err := start(shared + " race")
		require.NoError(t, err, stderr) // without -check or -races, no race is looked for
		assert.Equal(t, "done\n", stdout)
		stdout, stderr, err = start(shared+" race", "-check", "1")
		require.ErrorContains(t, err, "2 findings") // the read, and the write that may come before it
		assert.Contains(t, stderr, "kernel late, PTX line 97")
		assert.Equal(t, "done\n", stdout, "the program goes on")
		_, _, err = start(shared+" race", "-check", "1", "-stop")
		assert.Equal(t, 1, command.Code(err))
		stdout, stderr, err = start(shared+" race", "-check", "1", "-format", "json")
		require.ErrorContains(t, err, "2 findings")
		assert.Empty(t, stderr)
		var list struct{ Findings []finding }
		require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(stdout, "done\n")), &list), stdout)
		require.Len(t, list.Findings, 2)
		var lines []byte
		for _, x := range list.Findings {
			assert.Equal(t, "race", x.Rule)
			lines = fmt.Appendf(lines, "%d race\n", x.Line)
		}
		known := filepath.Join(folder, "known")
		require.NoError(t, os.WriteFile(known, lines, 0o600))
		_, stderr, err = start(shared+" race", "-check", "1", "-known", known)
		require.NoError(t, err)
		assert.Empty(t, stderr)
	})
	t.Run("pictures", func(t *testing.T) {
		to := filepath.Join(folder, "pictures")
		for range 2 { // a second run replaces the files of the first one
			_, _, err := start(shared+" race", "-races", "-html", to, "-trace", to, "-ptx", to)
			require.ErrorContains(t, err, "2 findings")
		}
		files, err := filepath.Glob(filepath.Join(to, "*"))
		require.NoError(t, err)
		require.Len(t, files, 4, files)
		for i, has := range []string{"late", "<b>  97", "<b>  97", ".entry late"} {
			text, err := os.ReadFile(files[i])
			require.NoError(t, err)
			assert.Contains(t, string(text), has, files[i])
		}
	})
	t.Run("fault", func(t *testing.T) {
		_, stderr, err := start(shared+" fault", "-fail", "error")
		require.ErrorContains(t, err, "1 finding")
		assert.Contains(t, stderr, "4 bytes at global address")
		_, stderr, err = start(static + " nothing")
		assert.Equal(t, command.Status(3), err, stderr)
		assert.Equal(t, 3, command.Code(err))
	})
}

// TestRunRefuses checks the errors of wrong command lines.
func TestRunRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no program": {nil, "run needs a program"},
		"two ways":   {[]string{"-check", "1", "-explore", "1", "p"}, "not both above 0"},
		"CTAs":       {[]string{"-ctas", "0", "p"}, "-sms and -ctas must be above 0"},
		"format":     {[]string{"-format", "xml", "p"}, `-format is "xml"`},
		"severity":   {[]string{"-fail", "never", "p"}, `-fail is "never"`},
		"library":    {[]string{"-library", filepath.Join(t.TempDir(), "none.so"), "p", "-check"}, "build it with: go build -buildmode=c-shared"},
		"known":      {[]string{"-known", filepath.Join(t.TempDir(), "none"), "p"}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, run(t.Context(), append([]string{"run"}, c.args...), &bytes.Buffer{}, &bytes.Buffer{}), c.want)
		})
	}
}
