package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeTable checks that the table of models in the README is the output of plan -works.
func TestReadmeTable(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-works"}, &out, io.Discard))
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	require.Contains(t, string(readme), out.String(), "go run ./examples/plan -works writes the README's table anew")
}
