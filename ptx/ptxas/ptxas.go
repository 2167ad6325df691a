// Package ptxas runs NVIDIA's assembler, if it is installed. Tests check every emitted kernel with
// it, and a machine without a GPU fills caches with it. Programs that run kernels do not need it.
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
	"time"
)

// ErrNotFound reports that no ptxas is installed.
var ErrNotFound = errors.New("ptxas not found: set PTXAS, put it in PATH, or pip install nvidia-cuda-nvcc==13.0.88")

// Find returns the absolute path of ptxas. It searches $PTXAS, then $PATH, then the places where
// the CUDA toolkit and Python's package nvidia-cuda-nvcc install it. It runs no program of the
// current folder.
func Find() (string, error) {
	if p := os.Getenv("PTXAS"); p != "" {
		if !filepath.IsAbs(p) {
			return "", fmt.Errorf("PTXAS is %q, must be an absolute path", p)
		}
		return p, nil
	}
	if p, err := exec.LookPath("ptxas"); err == nil && filepath.IsAbs(p) {
		return p, nil
	}
	if found := Installed("bin/ptxas"); len(found) > 0 {
		return found[0], nil
	}
	return "", ErrNotFound
}

// Installed returns the paths of the files with a name, such as "include/cuda.h", in the CUDA
// toolkit ($CUDA_HOME, /usr/local/cuda) and in NVIDIA's Python packages.
func Installed(name string) (files []string) {
	for _, dir := range append([]string{os.Getenv("CUDA_HOME"), "/usr/local/cuda"}, pythonFolders()...) {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if _, err := os.Stat(p); err == nil && filepath.IsAbs(p) {
			files = append(files, p)
		}
	}
	return files
}

// asked caches the result of askPython for each value of $PATH.
var asked sync.Map

// pythonFolders returns the folders of NVIDIA's Python packages. It runs Python once for each value
// of $PATH.
func pythonFolders() []string {
	path := os.Getenv("PATH")
	folders, ok := asked.Load(path)
	if !ok {
		folders, _ = asked.LoadOrStore(path, askPython())
	}
	return folders.([]string)
}

// askPython asks Python for the folders of its packages. Because of -I, and because the working
// directory is the root, Python does not run code of the current folder, of PYTHONPATH or of
// packages.
func askPython() (folders []string) {
	const sites = "import site; print('\\n'.join(site.getsitepackages() + [site.getusersitepackages()]))"
	for _, name := range []string{"python3", "python"} {
		c := exec.Command(name, "-I", "-c", sites)
		c.Dir = string(filepath.Separator)
		out, err := c.Output()
		if err != nil {
			continue
		}
		for _, dir := range strings.Split(strings.TrimSpace(string(out)), "\n") {
			if dir = strings.TrimSpace(dir); !filepath.IsAbs(dir) {
				continue
			}
			for _, sub := range []string{"cu13", "cuda_nvcc", "cuda_runtime", "cuda_nvdisasm"} {
				folders = append(folders, filepath.Join(dir, "nvidia", sub))
			}
		}
	}
	return folders
}

// Version returns the version of the ptxas program bin, such as "13.0.88".
func Version(ctx context.Context, bin string) (string, error) {
	out, err := exec.CommandContext(ctx, bin, "--version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w\n%s", bin, err, out)
	}
	m := versionText.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s --version prints no version:\n%s", bin, out)
	}
	return string(m[1]), nil
}

var versionText = regexp.MustCompile(`\bV(\d+\.\d+\.\d+)\b`)

// Assemble turns PTX into machine code for sm_90a. It also returns the assembler's report
// (registers, spills, warnings). Options, such as "-O0", are passed to the assembler.
func Assemble(ctx context.Context, text []byte, options ...string) (cubin []byte, report string, err error) {
	return AssembleFor(ctx, "sm_90a", text, options...)
}

// AssembleFor does the same as Assemble for another architecture.
func AssembleFor(ctx context.Context, arch string, text []byte, options ...string) (cubin []byte, report string, err error) {
	bin, err := Find()
	if err != nil {
		return nil, "", err
	}
	return Run(ctx, bin, arch, text, options...)
}

// Run does the same as AssembleFor with the ptxas program bin.
func Run(ctx context.Context, bin, arch string, text []byte, options ...string) (cubin []byte, report string, err error) {
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
	c := exec.CommandContext(ctx, bin, args...)
	c.WaitDelay = time.Second // a child process may keep the output open
	log, err := c.CombinedOutput()
	if err != nil {
		return nil, string(log), fmt.Errorf("ptxas: %w\n%s", err, log)
	}
	cubin, err = os.ReadFile(out)
	return cubin, string(log), err
}

// Message is a line of a report that names a line of the PTX text.
type Message struct {
	Line int
	Text string
}

var messageLine = regexp.MustCompile(`(?m)line (\d+); *(.*)$`)

// Messages returns the lines of a report that name a line of the PTX text.
func Messages(report string) []Message {
	var out []Message
	for _, m := range messageLine.FindAllStringSubmatch(report, -1) {
		n, _ := strconv.Atoi(m[1]) // the pattern has digits only
		out = append(out, Message{n, m[2]})
	}
	return out
}

// Complaint returns the first line of a report that no kernel of this project may cause: a warning,
// spilled registers, or wgmma that was serialised or patched. It returns "" if there is none.
func Complaint(report string) string {
	for _, line := range strings.Split(report, "\n") {
		low := strings.ToLower(line)
		switch {
		case strings.Contains(low, "warning"), strings.Contains(low, "serializ"), strings.Contains(line, "(C75"):
			return line
		case strings.Contains(low, "spill stores") && !strings.Contains(low, ", 0 bytes spill stores, 0 bytes spill loads"):
			return line
		}
	}
	return ""
}
