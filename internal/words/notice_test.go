package words

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNotice compares the modules that NOTICE lists with the tree's go.mod files. It also
// compares the licences in NOTICE and LICENSE with the modules that the shared library
// contains.
func TestNotice(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "NOTICE"))
	require.NoError(t, err)
	var listed, required []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z.]+\.[a-z]+/\S+) {2,}\S`).FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, m[1])
	}
	run := func(args ...string) []byte {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = root
		out, err := cmd.Output()
		require.NoError(t, err, "go %v", args)
		return out
	}
	own := strings.TrimSpace(string(run("list", "-m")))
	nested, err := filepath.Glob(filepath.Join(root, "*", "*", "go.mod"))
	require.NoError(t, err)
	for i, file := range append([]string{filepath.Join(root, "go.mod")}, nested...) {
		file, err := filepath.Abs(file)
		require.NoError(t, err)
		var mod struct {
			Require []struct {
				Path     string
				Indirect bool
			}
		}
		require.NoError(t, json.Unmarshal(run("mod", "edit", "-json", file), &mod))
		for _, m := range mod.Require {
			if m.Path != own && (i == 0 || !m.Indirect) {
				required = append(required, m.Path)
			}
		}
	}
	assert.Subset(t, listed, required, "modules that NOTICE lacks")
	assert.Subset(t, required, listed, "modules that no go.mod requires")

	apache, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	require.NoError(t, err)
	folded := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	within := strings.Fields(string(run("list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Dir}}{{end}}{{end}}", "./moe/capi")))
	require.NotEmpty(t, within)
	for _, dir := range within {
		text, err := os.ReadFile(filepath.Join(dir, "LICENSE"))
		require.NoError(t, err)
		terms, _, _ := strings.Cut(string(text), "APPENDIX") // the lines after "APPENDIX" name an owner
		assert.Contains(t, folded(string(apache)+string(page)), folded(terms), dir)
	}
}
