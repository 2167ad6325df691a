package autotune

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"sonicmoe/cache"
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

// ReadFile reads what WriteFile wrote.
func ReadFile(path string) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var j fileJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if j.Format != fileFormat {
		return nil, fmt.Errorf("%s: its Format is %q, want %q", path, j.Format, fileFormat)
	}
	f := NewFile()
	for _, c := range j.Choices {
		f.choices[c.Key] = c.Value
	}
	return f, nil
}

// WriteFile writes all choices, in place of the file that is there.
func (f *File) WriteFile(path string) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	j := fileJSON{Format: fileFormat, Choices: []fileChoice{}}
	for _, key := range slices.Sorted(maps.Keys(f.choices)) {
		j.Choices = append(j.Choices, fileChoice{key, f.choices[key]})
	}
	data, err := json.MarshalIndent(j, "", "\t")
	if err != nil {
		return err
	}
	// Readers see the old file or the new one, never half of it.
	t, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = t.Write(append(data, '\n'))
	if err == nil {
		err = t.Chmod(0o644)
	}
	if e := t.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(t.Name(), path)
	}
	if err != nil {
		os.Remove(t.Name())
	}
	return err
}

// GetChoice implements Store.
func (f *File) GetChoice(key string) ([]byte, cache.Outcome) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	value, ok := f.choices[key]
	if !ok {
		return nil, cache.Miss
	}
	return slices.Clone(value), cache.Hit
}

// PutChoice sets a choice, in place of an earlier one; value is Encode's.
func (f *File) PutChoice(key string, value []byte) cache.Outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.choices[key] = slices.Clone(value)
	return cache.Stored
}
