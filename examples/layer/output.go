package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"sonicmoe/examples/layer/safetensors"
)

// output is the file to be: it grows beside its place and moves there whole.
type output struct {
	path string
	temp *os.File // nil once it is committed or discarded
}

// createOutput begins an output before the long work does, so that a place
// that can't be written is known at once. inputs must not be overwritten.
func createOutput(path string, inputs ...string) (*output, error) {
	info, err := os.Stat(path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return nil, fmt.Errorf("output: %s is there and no regular file, must be a file or a new name", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("output: %w", err)
	}
	for _, in := range inputs {
		if other, statErr := os.Stat(in); err == nil && statErr == nil && os.SameFile(info, other) {
			return nil, fmt.Errorf("output: %s is the input %s, must be another file", path, in)
		}
	}
	name := filepath.Join(filepath.Dir(path), ".layer-"+rand.Text()+".tmp")
	temp, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, fmt.Errorf("output: %w", err)
	}
	return &output{path: path, temp: temp}, nil
}

// commit writes the tensors and puts the file in its place.
func (o *output) commit(tensors ...safetensors.Source) error {
	err := safetensors.Write(o.temp, map[string]string{"format": "pt"}, tensors...)
	if err == nil {
		err = o.temp.Sync()
	}
	if err == nil {
		err = o.temp.Close()
	}
	if err == nil {
		err = os.Rename(o.temp.Name(), o.path)
	}
	if err != nil {
		return fmt.Errorf("output: %s: %w", o.path, err)
	}
	o.temp = nil
	return nil
}

// discard removes what was not committed.
func (o *output) discard() error {
	if o.temp == nil {
		return nil
	}
	name := o.temp.Name()
	if err := o.temp.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
		return errors.Join(err, os.Remove(name))
	}
	o.temp = nil
	return os.Remove(name)
}

// fileTensor describes one tensor of the output.
func fileTensor(name string, t safetensors.DType, data io.Reader, shape ...int) safetensors.Source {
	dims := make([]int64, len(shape))
	for i, d := range shape {
		dims[i] = int64(d)
	}
	return safetensors.Source{Name: name, DType: t, Shape: dims, Data: data}
}
