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
)

// File is choices in one file: whoever reads the same file picks the same
// points, such as all ranks of a job. It is JSON, sorted by key, and may be
// kept under version control. Safe for concurrent use.
type File struct {
	mu      sync.RWMutex
	choices map[string]json.RawMessage
}

// fileFormat names what the file is.
const fileFormat = "sonicmoe choices 1"

type fileJSON struct {
	Format  string
	Choices []fileChoice
}

type fileChoice struct {
	Key   string
	Value json.RawMessage
}

// NewFile is a file without choices.
func NewFile() *File { return &File{choices: map[string]json.RawMessage{}} }

// mostFileBytes bounds a file of choices: tens of thousands fit.
const mostFileBytes = 16 << 20

// ReadFile reads a file of choices. What is none is an error, and none of it is
// read further than that takes.
func ReadFile(ctx context.Context, path string) (*File, error) {
	f, _, err := readFile(ctx, path)
	return f, err
}

// readFile is ReadFile, and gives the bytes.
func readFile(ctx context.Context, path string) (*File, []byte, error) {
	data, err := disk.ReadFile(ctx, disk.OS, path, mostFileBytes)
	if errors.Is(err, disk.ErrNotRegular) || errors.Is(err, disk.ErrTooLarge) {
		err = fmt.Errorf("%s is no file of choices: %w", path, err)
	}
	if err != nil {
		return nil, nil, err
	}
	var j fileJSON
	// Fields that are not known would be lost when the file is written again.
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&j); err != nil {
		return nil, nil, fmt.Errorf("%s is no file of choices: %w", path, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("%s is no file of choices: it goes on after byte %d", path, d.InputOffset())
	}
	if j.Format != fileFormat {
		return nil, nil, fmt.Errorf("%s is no file of choices: its Format is %q, want %q", path, j.Format, fileFormat)
	}
	f := NewFile()
	for _, c := range j.Choices {
		if _, twice := f.choices[c.Key]; twice { // as a merge leaves it
			return nil, nil, fmt.Errorf("%s is no file of choices: it has %q twice", path, c.Key)
		}
		f.choices[c.Key] = c.Value
	}
	return f, data, nil
}

// lockWait is how long a file of choices is waited for; who changes one holds
// it for a moment.
const lockWait = 30 * time.Second

// UpdateFile has change alter the choices of a file, beginning with none where
// there is no such file, and writes it whole or not at all. No change of another
// process or goroutine that goes through this function, at the same moment, is
// lost (but on file systems without locks). A file that is no file of choices
// stays as it is, and is an error.
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

// CheckFile says why UpdateFile would fail, before hours are spent on what is
// to be written. It changes nothing.
func CheckFile(ctx context.Context, path string) error {
	return locked(ctx, path, func(*File, []byte) error { return nil })
}

// WriteFile writes these choices in place of those of the file, if there is one.
// A file that is no file of choices stays as it is, and is an error.
func (f *File) WriteFile(path string) error {
	return UpdateFile(context.Background(), path, func(there *File) error {
		f.mu.RLock()
		defer f.mu.RUnlock()
		there.choices = maps.Clone(f.choices)
		return nil
	})
}

// locked gives the choices of a file, and its bytes, nil where there is none, to
// do under its lock.
func locked(ctx context.Context, path string, do func(f *File, old []byte) error) error {
	lock := path // of a link it is the file's, which others may know by another name
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
	// ctx limits the wait for the lock: a search that was stopped still saves.
	f, old, err := readFile(context.WithoutCancel(ctx), path)
	if errors.Is(err, fs.ErrNotExist) {
		f, old, err = NewFile(), nil, nil
	}
	if err != nil {
		return err
	}
	return do(f, old)
}

// encode is the file's text.
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

// replaceFile writes a file with the rights of the one that is there. Of a link
// it is the file that the link names.
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

// PutChoice sets a choice in place of an earlier one; value is Encode's. The
// error is nil.
func (f *File) PutChoice(key string, value []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.choices[key] = slices.Clone(value)
	return nil
}
