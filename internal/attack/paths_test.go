//go:build unix

package attack

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/moe/checkpoint/safetensors"
)

// TestPaths gives pipes, devices, folders and long files to every flag that takes a path.
// FILE stands for the path.
func TestPaths(t *testing.T) {
	dir := t.TempDir()
	pipe, folder, long := filepath.Join(dir, "pipe"), filepath.Join(dir, "folder"), filepath.Join(dir, "long")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	require.NoError(t, os.Mkdir(folder, 0o700))
	f, err := os.Create(long)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(300<<20))
	require.NoError(t, f.Close())
	weights, bundle, launch := filepath.Join(dir, "w.st"), filepath.Join(dir, "b.tar"), filepath.Join("..", "..", "examples", "emulate", "testdata", "sum")
	launch, err = filepath.Abs(launch)
	require.NoError(t, err)
	f, err = os.Create(weights)
	require.NoError(t, err)
	tensor := func(name string, shape ...int64) safetensors.Source {
		size := int64(2)
		for _, n := range shape {
			size *= n
		}
		return safetensors.Source{Name: name, DType: "BF16", Shape: shape, Data: bytes.NewReader(make([]byte, size))}
	}
	require.NoError(t, safetensors.Write(f, nil, tensor("router.weight", 2, 64), tensor("experts.gate_up", 2, 128, 64), tensor("experts.down", 2, 64, 64)))
	require.NoError(t, f.Close())
	refuses(t, dir, time.Minute, "", "warmup", "fill", "-shape", "64,64,2,1", "-tokens", "8", "-ptx-only", "-export", bundle)

	layer := []string{"layer", "-topk", "2", "-device", "emulated"}
	tune := []string{"tune", "-device", "emulated", "-shape", "128,64,4,2", "-tokens", "40"}
	for _, args := range [][]string{
		append(layer, "-weights", "FILE", "-input", "x", "-output", "o"),
		append(layer, "-weights", weights, "-input", "FILE", "-output", "o"),
		{"layer", "-model", "FILE", "-layer", "0", "-input", "x", "-output", "o", "-device", "emulated"},
		{"warmup", "fill", "-config", "FILE", "-ptx-only"},
		{"warmup", "fill", "-layers", "FILE", "-ptx-only"},
		{"warmup", "import", "FILE"},
		{"warmup", "verify", "FILE"},
		{"warmup", "import", "-key", "FILE", bundle},
		{"warmup", "verify", "-key", "FILE", bundle},
		append(tune, "-choices", "FILE"),
		append(tune, "-histogram", "FILE"),
		{"emulate", "-ptx", "FILE", "-launch", launch + ".json"},
		{"emulate", "-ptx", launch + ".ptx", "-launch", "FILE"},
		{"emulate", "-ptx", launch + ".ptx", "-launch", launch + ".json", "-known", "FILE"},
		{"bench", "-fit-from", "FILE"},
	} {
		flag := args[slices.Index(args, "FILE")-1]
		for _, path := range []string{pipe, "/dev/zero", "/dev/urandom", "/proc/self/mem", folder, long, filepath.Join(dir, "missing")} {
			if flag == "-choices" && filepath.Base(path) == "missing" {
				continue // tune makes the file
			}
			t.Run(args[0]+" "+flag+" "+filepath.Base(path), func(t *testing.T) {
				line := slices.Clone(args)
				line[slices.Index(line, "FILE")] = path
				refuses(t, dir, 20*time.Second, path, line...)
			})
		}
	}
}
