package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"sonicmoe/internal/disk"
	"sonicmoe/moe/checkpoint/safetensors"
)

// output is the output file. It is written under a temporary name and renamed when it is
// complete.
type output struct {
	path string
	file *disk.Pending
}

// createOutput begins an output file before the long work, so that an error comes early. The
// output file must not be one of the input files.
func createOutput(path string, inputs ...string) (*output, error) {
	info, err := os.Stat(path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return nil, fmt.Errorf("output: %s is no regular file, must be a file or a new name", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("output: %w", err)
	}
	for _, in := range inputs {
		if other, statErr := os.Stat(in); err == nil && statErr == nil && os.SameFile(info, other) {
			return nil, fmt.Errorf("output: %s is the input %s, must be another file", path, in)
		}
	}
	file, err := disk.Begin(disk.OS, path, 0o644)
	if err != nil {
		return nil, fmt.Errorf("output: %w", err)
	}
	return &output{path, file}, nil
}

// commit writes the tensors and renames the file.
func (o *output) commit(tensors ...safetensors.Source) error {
	err := safetensors.Write(o.file, map[string]string{"format": "pt"}, tensors...)
	if err == nil {
		err = o.file.Commit()
	}
	if err != nil {
		return fmt.Errorf("output: %s: %w", o.path, err)
	}
	return nil
}

// discard removes the temporary file, unless it was committed.
func (o *output) discard() error { return o.file.Discard() }

// fileTensor returns one tensor of the output file.
func fileTensor(name string, t string, data io.Reader, shape ...int) safetensors.Source {
	dims := make([]int64, len(shape))
	for i, d := range shape {
		dims[i] = int64(d)
	}
	return safetensors.Source{Name: name, DType: t, Shape: dims, Data: data}
}
