package words

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// maxVariables is the largest number of environment variables that tests may read.
const maxVariables = 8

// system lists variables that tests read but that belong to other software.
var system = []string{"PATH", "PYTHONPATH", "TMPDIR", "CUDA_CACHE_DISABLE", "CUDA_VISIBLE_DEVICES", "HF_TOKEN"}

// TestVariables checks that the tables of environment variables in CONTRIBUTING.md have exactly
// the variables that the tree uses, and that tests use at most maxVariables.
func TestVariables(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	require.NoError(t, err)
	tests, programs, ok := strings.Cut(string(page), "Variables that programs read:")
	require.True(t, ok)
	_, tests, ok = strings.Cut(tests, "Variables that tests read:")
	require.True(t, ok)
	programs, _, _ = strings.Cut(programs, "\n## ")
	listed := map[string]bool{} // true once the tree is seen to use the variable
	row := regexp.MustCompile("(?m)^\\| `(SONICMOE_[A-Z_]+)` \\|")
	for _, m := range row.FindAllStringSubmatch(tests+programs, -1) {
		listed[m[1]] = false
	}
	assert.LessOrEqual(t, len(row.FindAllString(tests, -1)), maxVariables, "variables for tests")

	name := regexp.MustCompile(`\bSONICMOE_[A-Z_]*[A-Z]\b`)
	guard := regexp.MustCompile(`_H$|^SONICMOE_TYPES_ONLY$`) // include guards of C headers
	read := regexp.MustCompile(`(?:Getenv|LookupEnv|environ\.get)\("(\w+)"`)
	for file, text := range tracked(t) {
		switch path.Ext(file) {
		case ".go", ".py", ".c", ".h", ".md", "":
		default:
			continue
		}
		if file == "CONTRIBUTING.md" || file == "internal/words/variables_test.go" {
			continue
		}
		for _, v := range name.FindAllString(text, -1) {
			if _, ok := listed[v]; ok {
				listed[v] = true
			} else {
				assert.True(t, guard.MatchString(v), "%s: %s is not in the tables of CONTRIBUTING.md", file, v)
			}
		}
		if strings.HasSuffix(file, "_test.go") || strings.Contains(file, "/tests/") {
			for _, m := range read.FindAllStringSubmatch(text, -1) {
				_, ok := listed[m[1]]
				assert.True(t, ok || slices.Contains(system, m[1]), "%s reads %s, which is not in the tables of CONTRIBUTING.md", file, m[1])
			}
		}
	}
	for _, v := range slices.Sorted(maps.Keys(listed)) {
		assert.True(t, listed[v], "CONTRIBUTING.md lists %s, which nothing uses", v)
	}
}
