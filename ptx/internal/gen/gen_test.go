package gen_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/ptx/internal/gen"
)

func TestGeneratedFilesAreFresh(t *testing.T) {
	files, err := gen.Files()
	require.NoError(t, err)
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("..", "..", name))
		require.NoError(t, err)
		assert.Equal(t, string(want), string(got), "%s is stale: run go generate ./ptx/isa", name)
	}
}
