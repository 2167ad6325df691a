// Package ptxas runs NVIDIA's assembler where one is installed: the outside
// judge of every kernel that this project emits, and where a cache is filled on
// a machine without a GPU. Nothing needs it at run time.
package ptxas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// ErrNotFound: no ptxas is installed.
var ErrNotFound = errors.New("ptxas not found: set PTXAS, put it in PATH, or pip install nvidia-cuda-nvcc==13.0.88")

// Find gives the path of ptxas: $PTXAS, the PATH, then the places where
// Python's nvidia-cuda-nvcc package and the CUDA toolkit put it.
func Find() (string, error) {
	if p := os.Getenv("PTXAS"); p != "" {
		return p, nil
	}
	if p, err := exec.LookPath("ptxas"); err == nil {
		return p, nil
	}
	places := append([]string{"/usr/local/cuda/bin/ptxas"}, pythonPlaces()...)
	for _, p := range places {
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	return "", ErrNotFound
}

// pythonPlaces are where Python's package may hold the assembler; asked once.
var pythonPlaces = sync.OnceValue(func() (places []string) {
	for _, py := range []string{"python3", "python"} {
		out, err := exec.Command(py, "-c", "import nvidia;print('\\n'.join(nvidia.__path__))").Output()
		if err != nil {
			continue
		}
		for _, dir := range strings.Fields(string(out)) {
			for _, sub := range []string{"cu13/bin/ptxas", "cuda_nvcc/bin/ptxas"} {
				places = append(places, filepath.Join(dir, sub))
			}
		}
	}
	return places
})

// Version is the version of the ptxas at that path, such as "13.0.88".
func Version(ctx context.Context, bin string) (string, error) {
	out, err := exec.CommandContext(ctx, bin, "--version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w\n%s", bin, err, out)
	}
	m := versionText.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s --version says no version:\n%s", bin, out)
	}
	return string(m[1]), nil
}

var versionText = regexp.MustCompile(`\bV(\d+\.\d+\.\d+)\b`)

// Assemble turns PTX into machine code for sm_90a and returns the assembler's
// report (registers, spills, warnings) with it. Options go to the assembler as
// they are, such as "-O0".
func Assemble(ctx context.Context, text []byte, options ...string) (cubin []byte, report string, err error) {
	return AssembleFor(ctx, "sm_90a", text, options...)
}

// AssembleFor is Assemble for another architecture.
func AssembleFor(ctx context.Context, arch string, text []byte, options ...string) (cubin []byte, report string, err error) {
	bin, err := Find()
	if err != nil {
		return nil, "", err
	}
	dir, err := os.MkdirTemp("", "ptxas")
	if err != nil {
		return nil, "", err
	}
	defer os.RemoveAll(dir)
	in, out := filepath.Join(dir, "k.ptx"), filepath.Join(dir, "k.cubin")
	if err := os.WriteFile(in, text, 0o600); err != nil {
		return nil, "", err
	}
	args := append([]string{"-arch=" + arch, "-v", "-o", out, in}, options...)
	log, err := exec.CommandContext(ctx, bin, args...).CombinedOutput()
	if err != nil {
		return nil, string(log), fmt.Errorf("ptxas: %w\n%s", err, log)
	}
	cubin, err = os.ReadFile(out)
	return cubin, string(log), err
}

// Message is one line of a report that names a line of the text.
type Message struct {
	Line int
	Text string
}

var messageLine = regexp.MustCompile(`(?m)line (\d+); *(.*)$`)

// Messages are the lines of a report that name a line of the text.
func Messages(report string) []Message {
	var out []Message
	for _, m := range messageLine.FindAllStringSubmatch(report, -1) {
		n, _ := strconv.Atoi(m[1]) // the pattern has digits only
		out = append(out, Message{n, m[2]})
	}
	return out
}

// Complaint is the first line of a report that a kernel must not cause: a
// warning, spilled registers, serialised or patched wgmma.
func Complaint(report string) string {
	for _, line := range strings.Split(report, "\n") {
		low := strings.ToLower(line)
		switch {
		case strings.Contains(low, "warning"), strings.Contains(low, "serializ"), strings.Contains(line, "(C75"):
			return line
		case strings.Contains(low, "spill stores") && !strings.Contains(low, "0 bytes spill stores, 0 bytes spill loads"):
			return line
		}
	}
	return ""
}
