package ptx_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/ptx"
)

// TestForeignSurvivesPrintAndParse parses, verifies and prints PTX of other compilers. The printed
// text must parse to the same module.
func TestForeignSurvivesPrintAndParse(t *testing.T) {
	files, err := filepath.Glob("testdata/foreign/*.ptx")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			m, err := ptx.Parse(text)
			require.NoError(t, err)
			require.NoError(t, m.Verify())
			first := m.Print().PTX
			again, err := ptx.Parse(first)
			require.NoError(t, err, "%s", first)
			assert.NoError(t, again.Verify())
			assert.Equal(t, string(first), string(again.Print().PTX))
		})
	}
}
