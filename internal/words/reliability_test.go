package words

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReliabilityNamesTests checks that each test that .ci/reliability.md names exists.
func TestReliabilityNamesTests(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, ".ci", "reliability.md"))
	require.NoError(t, err)
	functions := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^(?:func|def) (\w+)\(`)
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		base := filepath.Base(path)
		switch {
		case err != nil || d.IsDir():
			return err
		case !strings.HasSuffix(base, "_test.go") && !(strings.HasPrefix(base, "test_") && strings.HasSuffix(base, ".py")):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(text, -1) {
			functions[string(m[1])] = true
		}
		return err
	}))
	named := regexp.MustCompile("`((?:Test|Fuzz|test_)\\w+)`").FindAllSubmatch(page, -1)
	require.NotEmpty(t, named)
	for _, m := range named {
		assert.True(t, functions[string(m[1])], "%s is no test", m[1])
	}
}
