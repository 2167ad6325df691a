package autotune_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/autotune"
	"sonicmoe/internal/child"
)

func putOne(key string) func(*autotune.File) error {
	return func(f *autotune.File) error {
		return f.PutChoice(key, []byte(`{"Version":1}`))
	}
}

// TestForeignFilesStay checks that a file of another kind is refused and does not change.
func TestForeignFilesStay(t *testing.T) {
	for name, text := range map[string]string{
		"notes": "precious notes", "empty": "", "other JSON": `{"precious": "data"}`, "an array": `[]`,
		"another format": `{"Format":"other"}`, "a later one": `{"Format":"sonicmoe choices 2","Choices":[]}`,
		"broken":           `{"Format":"sonicmoe choices 1","Choices":[{"Key":"my tuned row","Value":{"Version":1}},]}`,
		"more after it":    `{"Format":"sonicmoe choices 1","Choices":[]} and notes`,
		"fields of mine":   `{"Format":"sonicmoe choices 1","Notes":"precious","Choices":[]}`,
		"a key twice":      `{"Format":"sonicmoe choices 1","Choices":[{"Key":"a","Value":1},{"Key":"a","Value":2}]}`,
		"a field twice":    `{"Format":"sonicmoe choices 1","Choices":[{"Key":"a","Value":1,"value":2}]}`,
		"twice in a value": `{"Format":"sonicmoe choices 1","Choices":[{"Key":"a","Value":{"Version":1,"Version":2}}]}`,
		"fields in a row":  `{"Format":"sonicmoe choices 1","Choices":[{"Key":"a","Value":1,"Note":"precious"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "choices.json")
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			_, err := autotune.ReadFile(t.Context(), path)
			require.ErrorContains(t, err, path)
			for _, err := range []error{
				autotune.CheckFile(t.Context(), path),
				autotune.UpdateFile(t.Context(), path, putOne("a")),
				autotune.NewFile().WriteFile(path),
			} {
				require.ErrorContains(t, err, path+" is not a file of choices")
			}
			got, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, text, string(got))
			list, err := os.ReadDir(filepath.Dir(path))
			require.NoError(t, err)
			assert.Len(t, list, 1, "no lock and no temporary file is left")
		})
	}
	for _, path := range []string{t.TempDir(), os.DevNull} {
		_, err := autotune.ReadFile(t.Context(), path)
		assert.ErrorContains(t, err, "not a file of choices", path)
	}
	huge := filepath.Join(t.TempDir(), "huge")
	require.NoError(t, os.WriteFile(huge, nil, 0o600))
	require.NoError(t, os.Truncate(huge, 1<<40))
	_, err := autotune.ReadFile(t.Context(), huge)
	assert.ErrorContains(t, err, "is too large: 1099511627776 bytes, must be at most 16777216")
	assert.Error(t, autotune.CheckFile(t.Context(), filepath.Join(t.TempDir(), "no", "choices.json")))
}

// TestUpdateByALink checks that no change is lost if one writer uses a link and another the
// file's name.
func TestUpdateByALink(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("only administrators may create links")
	}
	dir := t.TempDir()
	path, link := filepath.Join(dir, "choices.json"), filepath.Join(t.TempDir(), "link.json")
	require.NoError(t, autotune.NewFile().WriteFile(path))
	require.NoError(t, os.Symlink(path, link))
	done := make(chan error, 1)
	require.NoError(t, autotune.UpdateFile(t.Context(), path, func(f *autotune.File) error {
		go func() { done <- autotune.UpdateFile(t.Context(), link, putOne("by the link")) }()
		time.Sleep(50 * time.Millisecond) // until the other update waits for the lock
		return putOne("by the name")(f)
	}))
	require.NoError(t, <-done)
	f, err := autotune.ReadFile(t.Context(), path)
	require.NoError(t, err)
	for _, key := range []string{"by the name", "by the link"} {
		_, ok := f.GetChoice(key)
		assert.True(t, ok, key)
	}
}

// TestUpdateFile checks that a missing file is created, that permissions and links are kept,
// that a file is not written if its choices do not change, and that a change that fails leaves
// the file unchanged.
func TestUpdateFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "choices.json")
	require.NoError(t, autotune.CheckFile(t.Context(), path))
	require.NoFileExists(t, path)
	require.NoError(t, autotune.UpdateFile(t.Context(), path, putOne("a")))
	require.NoError(t, os.Chmod(path, 0o600))
	before, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, autotune.UpdateFile(t.Context(), path, putOne("a")))
	after, err := os.Stat(path)
	require.NoError(t, err)
	assert.True(t, os.SameFile(before, after), "nothing changed, nothing is written")

	link := filepath.Join(dir, "link.json")
	if err := os.Symlink("choices.json", link); err == nil {
		require.NoError(t, autotune.UpdateFile(t.Context(), link, putOne("b")))
		fi, err := os.Lstat(link)
		require.NoError(t, err)
		assert.NotZero(t, fi.Mode()&fs.ModeSymlink)
		f, err := autotune.ReadFile(t.Context(), path)
		require.NoError(t, err)
		_, ok := f.GetChoice("b")
		assert.True(t, ok)
		if runtime.GOOS != "windows" {
			fi, err = os.Stat(path)
			require.NoError(t, err)
			assert.Equal(t, fs.FileMode(0o600), fi.Mode().Perm())
		}
	}

	text, err := os.ReadFile(path)
	require.NoError(t, err)
	failing := errors.New("no more choices")
	require.ErrorIs(t, autotune.UpdateFile(t.Context(), path, func(f *autotune.File) error {
		return errors.Join(f.PutChoice("c", []byte("1")), failing)
	}), failing)
	require.Error(t, autotune.UpdateFile(t.Context(), path, func(f *autotune.File) error {
		return f.PutChoice("c", []byte("half a rec")) // the value is not JSON
	}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, autotune.UpdateFile(ctx, path, putOne("a")), "a lock that is free needs no waiting")
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(text), string(now))
}

// TestUpdatesAtOnce changes one file at the same time in this process and in others, and checks
// that the file then has every choice.
func TestUpdatesAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "choices.json")
	const processes, goroutines, each = 3, 6, 10
	var all sync.WaitGroup
	for range processes {
		all.Go(func() {
			out, err := child.Command(t, "TestUpdateFileChild", path).CombinedOutput()
			assert.NoError(t, err, "%s", out)
		})
	}
	for g := range goroutines {
		all.Go(func() {
			for i := range each {
				assert.NoError(t, autotune.UpdateFile(context.Background(), path, putOne(fmt.Sprint(g, " ", i))))
			}
		})
	}
	all.Wait()
	f, err := autotune.ReadFile(t.Context(), path)
	require.NoError(t, err)
	for g := range goroutines {
		for i := range each {
			_, ok := f.GetChoice(fmt.Sprint(g, " ", i))
			assert.True(t, ok)
		}
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, goroutines*each+processes*each, strings.Count(string(text), `"Key"`))
	list, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	assert.Len(t, list, 1)
}

// TestUpdateFileChild runs in the other processes that TestUpdatesAtOnce starts.
func TestUpdateFileChild(t *testing.T) {
	path := child.Role()
	if path == "" {
		t.Skip("this test is the child process of TestUpdatesAtOnce")
	}
	for i := range 10 {
		require.NoError(t, autotune.UpdateFile(t.Context(), path, putOne(fmt.Sprint("process ", os.Getpid(), " ", i))))
	}
}

// TestReadFileEndsWithItsContext checks that ReadFile returns when its context ends.
func TestReadFileEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "choices.json")
	require.NoError(t, autotune.NewFile().WriteFile(path))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := autotune.ReadFile(ctx, path)
	require.ErrorIs(t, err, context.Canceled)
}
