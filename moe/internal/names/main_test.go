package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFileIsToday checks that zspec.go equals what the command writes for internal/spec.
func TestFileIsToday(t *testing.T) {
	want, err := generate("../../../internal/spec")
	require.NoError(t, err)
	got, err := os.ReadFile("../../zspec.go")
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "go generate ./moe writes it anew")
	require.Contains(t, string(got), "//\t\t// Hidden is d, the width of a token")
	require.Contains(t, string(got), "// BF16 is the upper half")
}
