// Package outside finds programs and files that do not belong to this project, but that its
// tests compare with: NVIDIA's assembler, disassembler and header, a C compiler, Python
// packages. If one is missing, the test skips and says what was not compared. If
// $SONICMOE_REQUIRE, a comma-separated list, contains the missing one, the test fails. The
// machine that admits changes sets this variable.
package outside

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sonicmoe/ptx/ptxas"
)

// EnvRequire is the variable that lists what must not be missing: ptxas, nvdisasm, cuda.h, cc,
// chromium, and names of Python packages.
const EnvRequire = "SONICMOE_REQUIRE"

// Ptxas returns the path of NVIDIA's assembler.
func Ptxas(t testing.TB) string {
	t.Helper()
	bin, err := ptxas.Find()
	if err != nil {
		missing(t, "ptxas", err.Error())
	}
	return bin
}

// Nvdisasm returns the path of NVIDIA's disassembler.
func Nvdisasm(t testing.TB) string {
	t.Helper()
	if bin, err := exec.LookPath("nvdisasm"); err == nil {
		return bin
	}
	if found := ptxas.Installed("bin/nvdisasm"); len(found) > 0 {
		return found[0]
	}
	missing(t, "nvdisasm", "nvdisasm not found: put it in PATH, or pip install nvidia-cuda-nvdisasm")
	return ""
}

// Header returns a folder with a cuda.h that contains the given word. A word such as the name
// of a new error code tells a recent header from an old one.
func Header(t testing.TB, word string) string {
	t.Helper()
	for _, file := range append(ptxas.Installed("include/cuda.h"), "/usr/include/cuda.h") {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), word) {
			return filepath.Dir(file)
		}
	}
	missing(t, "cuda.h", "no cuda.h that knows "+word+", of a toolkit or of pip's nvidia-cuda-runtime")
	return ""
}

// CC returns the path of a C compiler.
func CC(t testing.TB) string {
	t.Helper()
	bin, err := exec.LookPath("cc")
	if err != nil {
		missing(t, "cc", "no C compiler cc in PATH")
	}
	return bin
}

// Chromium returns the path of a browser that runs without a display.
func Chromium(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if bin, err := exec.LookPath(name); err == nil {
			return bin
		}
	}
	missing(t, "chromium", "no chromium in PATH: Debian's package of that name")
	return ""
}

// Python returns the path of a Python that can import all of the packages. An entry may list
// alternatives, such as "torch|numpy"; one of them is enough.
func Python(t testing.TB, packages ...string) string {
	t.Helper()
	bin, err := exec.LookPath("python3")
	if err != nil {
		missing(t, "python3", "no python3 in PATH")
	}
	for _, p := range packages {
		names := strings.Split(p, "|")
		if !slices.ContainsFunc(names, func(name string) bool { return imports(bin, name) }) {
			missing(t, names[len(names)-1], "python3 has no package "+strings.Join(names, " or "))
		}
	}
	return bin
}

// imports reports whether Python can import a package that has code. A folder without code can
// be imported too, as an empty package, so imports asks for the package's file. Python looks in
// the current folder first; the command therefore runs in the root folder.
func imports(python, name string) bool {
	c := exec.Command(python, "-c", "import "+name+"\nassert "+name+".__file__")
	c.Dir = string(filepath.Separator)
	return c.Run() == nil
}

// missing fails the test if the tool is required. Otherwise it skips the test.
func missing(t testing.TB, name, why string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv(EnvRequire), ","), name) {
		t.Fatalf("%s; $%s demands %s", why, EnvRequire, name)
	}
	t.Skip(why)
}
