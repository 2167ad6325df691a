package examples_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryFuzzTargetRuns checks that CI runs every fuzz target of the module, and that CI
// bounds the minimising of a failing input by a count. (A time bound would use up most of a
// short run.) The test replaces the go command by a program that only records its arguments.
func TestEveryFuzzTargetRuns(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skipf("no bash to run .ci/fuzz with: %v", err)
	}
	ci, err := os.ReadFile("../.ci/run")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^\.ci/fuzz$`, string(ci))

	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), []byte("#!/bin/sh\necho \"ran $*\"\n"), 0o755))
	fuzz := exec.Command("bash", "../.ci/fuzz")
	fuzz.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	out, err := fuzz.CombinedOutput()
	require.NoError(t, err, string(out))
	var ran []string
	for line := range strings.Lines(string(out)) {
		if m := regexp.MustCompile(`^ran test .*-fuzz \^(\w+)\$ .*-fuzzminimizetime 10x (\S+)$`).FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			ran = append(ran, m[2]+" "+m[1])
		}
	}

	var there []string
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			folder, err := filepath.Rel("..", filepath.Dir(path))
			if err != nil {
				return err
			}
			there = append(there, "./"+filepath.ToSlash(folder)+" "+m[1])
		}
		return err
	}))
	require.NotEmpty(t, there)
	require.ElementsMatch(t, there, ran)
}
