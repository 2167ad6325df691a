package autotune

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"sonicmoe/internal/disk"
	"sonicmoe/internal/strict"
)

// File holds choices in one file, so that all readers of the file, such as the ranks of a job,
// pick the same points. The file is JSON, sorted by key, which suits version control. A File is
// safe for concurrent use.
type File struct {
	mu      sync.RWMutex
	choices map[string]json.RawMessage
}

// fileFormat is the value by which a file of choices is recognised.
const fileFormat = "sonicmoe choices 1"

type fileJSON struct {
	Format  string
	Choices []fileChoice
}

type fileChoice struct {
	Key   string
	Value json.RawMessage
}

// NewFile returns a file without choices.
func NewFile() *File { return &File{choices: map[string]json.RawMessage{}} }

// mostFileBytes is the largest size of a file of choices. Tens of thousands of choices fit.
const mostFileBytes = 16 << 20

// ReadFile reads a file of choices. If the file is of another kind, the result is an error, and
// ReadFile reads only as much as it needs to find out.
func ReadFile(ctx context.Context, path string) (*File, error) {
	f, _, err := readFile(ctx, path)
	return f, err
}

// readFile is [ReadFile], and also returns the file's bytes.
func readFile(ctx context.Context, path string) (*File, []byte, error) {
	data, err := disk.ReadFile(ctx, disk.OS, path, mostFileBytes)
	if errors.Is(err, disk.ErrNotRegular) || errors.Is(err, disk.ErrTooLarge) {
		err = fmt.Errorf("%s is not a file of choices: %w", path, err)
	}
	if err != nil {
		return nil, nil, err
	}
	var j fileJSON
	// Unknown fields would be lost when the file is written again.
	if err := strict.Decode(data, &j); err != nil {
		return nil, nil, fmt.Errorf("%s is not a file of choices: %w", path, err)
	}
	if j.Format != fileFormat {
		return nil, nil, fmt.Errorf("%s is not a file of choices: its Format is %q, want %q", path, j.Format, fileFormat)
	}
	f := NewFile()
	for _, c := range j.Choices {
		if _, twice := f.choices[c.Key]; twice { // a merge of two versions of the file can leave a key twice
			return nil, nil, fmt.Errorf("%s is not a file of choices: it has %q twice", path, c.Key)
		}
		f.choices[c.Key] = c.Value
	}
	return f, data, nil
}

// lockWait is the longest time to wait for the lock of a file of choices. A writer holds the
// lock only for a moment.
const lockWait = 30 * time.Second

// UpdateFile calls the function change with the choices of a file, and then replaces the file as a
// whole or not at all. If the file does not exist, change gets no choices. If several processes or
// goroutines use UpdateFile at once, no change is lost, except on file systems without locks. A
// file of another kind is an error and stays unchanged.
func UpdateFile(ctx context.Context, path string, change func(*File) error) error {
	return locked(ctx, path, func(f *File, old []byte) error {
		if err := change(f); err != nil {
			return err
		}
		data, err := f.encode()
		if err != nil || old != nil && bytes.Equal(data, old) {
			return err
		}
		return replaceFile(path, data)
	})
}

// CheckFile returns the error that UpdateFile would return. A program can call it before hours
// of work. CheckFile changes nothing.
func CheckFile(ctx context.Context, path string) error {
	return locked(ctx, path, func(*File, []byte) error { return nil })
}

// WriteFile replaces the choices in a file by the choices of f. A file of another kind is an
// error and stays unchanged.
func (f *File) WriteFile(path string) error {
	return UpdateFile(context.Background(), path, func(there *File) error {
		f.mu.RLock()
		defer f.mu.RUnlock()
		there.choices = maps.Clone(f.choices)
		return nil
	})
}

// locked calls the function do while it holds the file's lock. It passes the file's choices and
// bytes; the bytes are nil if there is no file.
func locked(ctx context.Context, path string, do func(f *File, old []byte) error) error {
	lock := path // for a link, lock its target, because other writers may use the target's name
	if target, err := filepath.EvalSymlinks(path); err == nil {
		lock = target
	}
	unlock, err := disk.Lock(ctx, disk.OS, lock+".lock", lockWait)
	switch {
	case err == nil:
		defer unlock()
	case !errors.Is(err, disk.ErrNoLocks):
		return fmt.Errorf("the choices in %s can't be changed: %w", path, err)
	}
	// ctx limits only the wait for the lock. A search that was stopped can therefore still
	// save.
	f, old, err := readFile(context.WithoutCancel(ctx), path)
	if errors.Is(err, fs.ErrNotExist) {
		f, old, err = NewFile(), nil, nil
	}
	if err != nil {
		return err
	}
	return do(f, old)
}

// encode returns the text of the file.
func (f *File) encode() ([]byte, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	j := fileJSON{Format: fileFormat, Choices: []fileChoice{}}
	for _, key := range slices.Sorted(maps.Keys(f.choices)) {
		j.Choices = append(j.Choices, fileChoice{key, f.choices[key]})
	}
	data, err := json.MarshalIndent(j, "", "\t")
	return append(data, '\n'), err
}

// replaceFile replaces a file and keeps its permissions. If path is a link, it replaces the
// link's target.
func replaceFile(path string, data []byte) error {
	mode := fs.FileMode(0o644)
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
		if fi, err := os.Stat(path); err == nil {
			mode = fi.Mode().Perm()
		}
	}
	return disk.WriteFile(disk.OS, path, mode, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// GetChoice implements Store.
func (f *File) GetChoice(key string) (value []byte, ok bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	value, ok = f.choices[key]
	return slices.Clone(value), ok
}

// PutChoice stores a choice under a key, or replaces the stored one. value comes from [Encode].
// The error is always nil.
func (f *File) PutChoice(key string, value []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.choices[key] = slices.Clone(value)
	return nil
}
