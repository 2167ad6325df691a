package autotune_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/autotune"
)

// FuzzChoices reads random texts as files of choices. If a text is accepted, it must stay the
// same when it is written and read again. If it is refused, the file must not change.
func FuzzChoices(f *testing.F) {
	f.Add([]byte(`{"Format":"sonicmoe choices 1","Choices":[{"Key":"a","Value":{"Version":1,"Point":{"TileN":128},"PTX":"00"}},{"Key":"b","Value":null}]}`))
	f.Add([]byte(`{"Format":"sonicmoe choices 1","Choices":[{"Key":"a","Value":1},{"Key":"a","Value":2}]}`))
	f.Add([]byte(`{"format":"sonicmoe choices 1"}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		path, other := filepath.Join(dir, "a"), filepath.Join(dir, "b")
		require.NoError(t, os.WriteFile(path, data, 0o600))
		read, err := autotune.ReadFile(t.Context(), path)
		if err != nil {
			require.Error(t, autotune.NewFile().WriteFile(path))
			after, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, data, after)
			return
		}
		require.NoError(t, read.WriteFile(path))
		first, err := os.ReadFile(path)
		require.NoError(t, err)
		again, err := autotune.ReadFile(t.Context(), path)
		require.NoError(t, err)
		_ = os.Remove(other)
		require.NoError(t, again.WriteFile(other))
		second, err := os.ReadFile(other)
		require.NoError(t, err)
		if !bytes.Equal(first, second) {
			t.Fatalf("written as %q, then as %q", first, second)
		}
	})
}
