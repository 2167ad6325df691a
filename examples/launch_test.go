package examples_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/moe/checkpoint/safetensors"
)

// TestRecordedLaunch checks that emulate accepts the files that quickstart -launch writes. The
// memory after the launch of the up-projection must be the memory before the launch of the
// down-projection.
func TestRecordedLaunch(t *testing.T) {
	bin, err := exec.LookPath("go")
	if err != nil {
		t.Skipf("no go command to build programs with: %v", err)
	}
	dir := t.TempDir()
	run := func(name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Env = append(cmd.Environ(), "SONICMOE_CACHE=off")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%v\n%s", args, out)
		return string(out)
	}
	run(bin, "build", "-ldflags=-s -w", "-o", dir, "./quickstart", "./emulate")
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, kernel := range []string{"up", "down"} {
		out := run(at("quickstart"), "-listing", kernel, "-launch", at(kernel+".json"))
		require.Contains(t, out, "go run ./examples/emulate -ptx "+at(kernel)+".ptx -launch "+at(kernel)+".json\n")
	}
	before, err := safetensors.Open(t.Context(), at("down.safetensors"))
	require.NoError(t, err)
	defer before.Close()
	args := []string{"-ptx", at("up.ptx"), "-launch", at("up.json"), "-check", "0"}
	for _, tensor := range before.Tensors() {
		args = append(args, "-dump", tensor.Name+"="+at(tensor.Name+".bin"))
	}
	require.Contains(t, run(at("emulate"), args...), "kernel moe_up: nothing ")
	first, err := safetensors.Open(t.Context(), at("up.safetensors"))
	require.NoError(t, err)
	defer first.Close()
	read := func(f *safetensors.File, name string) []byte {
		section, err := f.Section(name)
		require.NoError(t, err)
		data, err := io.ReadAll(section)
		require.NoError(t, err)
		return data
	}
	changed := 0
	for _, tensor := range before.Tensors() {
		got, err := os.ReadFile(at(tensor.Name + ".bin"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(read(before, tensor.Name), got), fmt.Sprint(tensor))
		if !bytes.Equal(read(first, tensor.Name), got) {
			changed++
		}
	}
	require.Positive(t, changed, "the up-projection writes")
	for _, wrong := range [][]string{{"-launch", at("x.json")}, {"-listing", "up", "-launch", at("x.txt")}, {"-listing", "up", "-launch", at("x.json"), "-device", "cuda"}, {"-listing", "dw1", "-launch", at("x.json")}} {
		require.Error(t, exec.CommandContext(t.Context(), at("quickstart"), wrong...).Run(), "%v", wrong)
	}
	require.NoFileExists(t, at("x.json"))
}
