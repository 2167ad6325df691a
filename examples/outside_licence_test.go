package examples_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestOutsideIsTidy checks a module that uses sonicmoe. Its go.mod and vendor folder must have
// only the packages that its program needs: no driver under the GPL, and no library for
// pictures or tests.
func TestOutsideIsTidy(t *testing.T) {
	bin, err := exec.LookPath("go")
	if err != nil {
		t.Skipf("no go command: %v", err)
	}
	out, err := goCommand(bin, "mod", "tidy", "-diff").CombinedOutput()
	if err != nil && unreachable(string(out)) {
		t.Skipf("modules can't be resolved here: %v\n%s", err, out)
	}
	require.NoError(t, err, "examples/outside is not tidy:\n%s", out)
	mod, err := os.ReadFile("outside/go.mod")
	require.NoError(t, err)
	vendor := filepath.Join(t.TempDir(), "vendor")
	out, err = goCommand(bin, "mod", "vendor", "-o", vendor).CombinedOutput()
	require.NoError(t, err, string(out))
	list, err := os.ReadFile(filepath.Join(vendor, "modules.txt"))
	require.NoError(t, err)
	for _, text := range []string{string(mod), string(list)} {
		for _, name := range []string{"mumax", "gonum", "progressbar", "testify"} {
			assert.NotContains(t, text, name)
		}
	}
	licence := regexp.MustCompile(`(?i)gnu (general|lesser|affero)`)
	require.NoError(t, filepath.WalkDir(vendor, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		assert.False(t, licence.Match(text) && strings.Contains(strings.ToLower(d.Name()), "licen"), path)
		assert.False(t, strings.HasSuffix(path, ".go") && licence.Match(text), path)
		return err
	}))
}
