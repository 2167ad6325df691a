//go:build unix

package attack

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/moe/checkpoint/safetensors"
)

// TestPaths gives pipes, devices, folders and long files to every flag that takes a path. FILE
// stands for the path in a command line.
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

	for _, args := range reading(weights, bundle, launch) {
		if testing.Short() && !slices.Contains(briefly, "./"+args[0]) {
			continue
		}
		flag := args[slices.Index(args, "FILE")-1]
		for _, path := range []string{pipe, "/dev/zero", "/dev/urandom", "/proc/self/mem", folder, long, filepath.Join(dir, "missing")} {
			if flag == "-choices" && filepath.Base(path) == "missing" {
				continue // the command tune creates this file
			}
			t.Run(strings.Join(args[:2], " ")+" "+flag+" "+filepath.Base(path), func(t *testing.T) {
				line := slices.Clone(args)
				line[slices.Index(line, "FILE")] = path
				refuses(t, dir, 20*time.Second, path, line...)
			})
		}
	}
}

// reading returns a command line for each path that a command reads, with FILE in its place.
// The other paths of the line are valid.
func reading(weights, bundle, launch string) [][]string {
	layer := []string{"layer", "-topk", "2", "-device", "emulated"}
	tune := []string{"tune", "-device", "emulated", "-shape", "128,64,4,2", "-tokens", "40"}
	return [][]string{
		append(layer, "-weights", "FILE", "-input", "x", "-output", "o"),
		append(layer, "-weights", weights, "-input", "FILE", "-output", "o"),
		{"layer", "-model", "FILE", "-layer", "0", "-input", "x", "-output", "o", "-device", "emulated"},
		{"layer", "-model", "FILE", "-layer", "0", "-store", "o"},
		{"serve", "-model", "FILE", "-device", "emulated", "-listen", "localhost:0"},
		{"plan", "FILE"},
		{"warmup", "fill", "-config", "FILE", "-ptx-only"},
		{"warmup", "fill", "-layers", "FILE", "-ptx-only"},
		{"warmup", "import", "FILE"},
		{"warmup", "list", "FILE"},
		{"warmup", "verify", "FILE"},
		{"warmup", "import", "-key", "FILE", bundle},
		{"warmup", "verify", "-key", "FILE", bundle},
		append(tune, "-choices", "FILE"),
		append(tune, "-histogram", "FILE"),
		{"emulate", "-ptx", "FILE", "-launch", launch + ".json"},
		{"emulate", "-ptx", launch + ".ptx", "-launch", "FILE"},
		{"emulate", "-ptx", launch + ".ptx", "-launch", launch + ".json", "-known", "FILE"},
		{"bench", "-from", "FILE"},
		{"bench", "-fit-from", "FILE"},
	}
}

// written names the flags whose file a command writes. Every command also has -cache, which
// TestPlaces of package cache attacks.
var written = []string{
	"bench -json", "bench -plot", "emulate -dump", "emulate -html", "emulate -trace", "layer -output", "layer -store", "plan -plot", "quickstart -launch", "train -plot", "tune -plot",
	"warmup fill -export", "warmup export",
}

// started names the flags whose file is a program that a command starts. Its content is not read.
var started = []string{"bench -against"}

// TestEveryPathIsAttacked checks that reading, written and started have every flag of every command that
// takes a path.
func TestEveryPathIsAttacked(t *testing.T) {
	if testing.Short() {
		t.Skip("builds every program")
	}
	dir, err := commands()
	require.NoError(t, err)
	programs, err := os.ReadDir(dir)
	require.NoError(t, err)
	known := slices.Concat(written, started)
	for _, args := range reading("", "", "") {
		name := args[0]
		if name == "warmup" {
			name += " " + args[1]
		}
		if flag := args[slices.Index(args, "FILE")-1]; strings.HasPrefix(flag, "-") {
			name += " " + flag
		}
		known = append(known, name)
	}
	var found []string
	for _, p := range programs {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		help, err := exec.CommandContext(ctx, filepath.Join(dir, p.Name()), "-h").Output()
		cancel()
		require.NoError(t, err, p.Name())
		name := p.Name()
		for line := range strings.Lines(string(help)) {
			switch sub, flag := subcommand.FindStringSubmatch(line), flagOfPath.FindStringSubmatch(line); {
			case sub != nil:
				name = p.Name() + " " + sub[1]
				if sub[2] != "" {
					found = append(found, name)
				}
			case flag != nil && flag[1] != "-cache":
				found = append(found, name+" "+flag[1])
			}
		}
	}
	found = append(found, "plan") // a model
	assert.Subset(t, known, found, "a path that no attack knows")
	assert.Subset(t, found, known, "an attack on a flag that is gone")
}

var (
	subcommand = regexp.MustCompile(`^warmup ([a-z]+) (FILE|\[DIR or FILE\])?`)
	flagOfPath = regexp.MustCompile(`^  (-[a-z-]+) (?:\S*(?:file|FILE|folder)|directory|key|NAME)\n`)
)
