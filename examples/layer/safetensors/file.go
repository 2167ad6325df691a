package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
)

// lengthBytes is the size of the header's length, which a file begins with.
const lengthBytes = 8

// File is an open safetensors file. It is safe for concurrent use.
type File struct {
	source   io.ReaderAt
	closer   io.Closer // nil unless opened by Open
	data     int64     // where the data begins
	tensors  []Tensor
	byName   map[string]int
	metadata map[string]string
}

// Open opens a file and reads its header. Close it when done.
func Open(path string) (*File, error) {
	// Opening a pipe waits for a writer, and nothing but a file has a size.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file (%s)", path, info.Mode().Type())
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil {
		var f *File
		if f, err = New(file, info.Size()); err == nil {
			f.closer = file
			return f, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
}

// New reads the header of a file of so many bytes. It never reads past them.
func New(source io.ReaderAt, size int64) (*File, error) {
	if size < lengthBytes {
		return nil, headerErrorf("the file has %d bytes, fewer than the 8 of the header's length", size)
	}
	var length [lengthBytes]byte
	if err := readFull(source, length[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > MaxHeader {
		if kind := otherKind(length[:]); kind != "" {
			return nil, headerErrorf("starts as %s does, must be a length and JSON: this is no safetensors file", kind)
		}
		return nil, headerErrorf("has %d bytes, must have at most %d", n, MaxHeader)
	}
	if int64(n) > size-lengthBytes {
		return nil, headerErrorf("has %d bytes, but the file ends after %d of them", n, size-lengthBytes)
	}
	f := &File{source: source, data: lengthBytes + int64(n), byName: map[string]int{}}
	var err error
	if f.tensors, f.metadata, err = parseHeader(&whole{source: source, at: lengthBytes, left: int64(n)}, size-f.data); err != nil {
		return nil, err
	}
	for i, t := range f.tensors {
		f.byName[t.Name] = i
	}
	return f, nil
}

// otherKind names files that are taken for safetensors, by how they begin; "" is
// none of them.
func otherKind(start []byte) string {
	switch {
	case start[0] == '{':
		return "JSON, such as the index of a sharded model,"
	case string(start[:4]) == "PK\x03\x04", start[0] == 0x80:
		return "a file of torch.save"
	case string(start[:4]) == "GGUF":
		return "GGUF"
	}
	return ""
}

// whole reads so many bytes of a source as a stream; a source that ends early is
// an error.
type whole struct {
	source   io.ReaderAt
	at, left int64
}

// Read implements io.Reader.
func (w *whole) Read(p []byte) (int, error) {
	if w.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), w.left)]
	if err := readFull(w.source, p, w.at); err != nil {
		return 0, err
	}
	w.at += int64(len(p))
	w.left -= int64(len(p))
	return len(p), nil
}

// readFull reads all of p; a source that ends early is an error.
func readFull(source io.ReaderAt, p []byte, off int64) error {
	n, err := source.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("safetensors: %d of %d bytes at %d: %w", n, len(p), off, err)
}

// Close closes what Open opened.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

// Tensors lists the tensors in the order of their data. Don't change it.
func (f *File) Tensors() []Tensor { return f.tensors }

// Metadata is the file's map of strings, nil if it has none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.metadata) }

// Tensor gives the entry of that name. The error of an unknown one lists names.
func (f *File) Tensor(name string) (Tensor, error) {
	if i, ok := f.byName[name]; ok {
		return f.tensors[i], nil
	}
	names := slices.Sorted(maps.Keys(f.byName))
	const listed = 8
	if len(names) > listed {
		names = append(names[:listed], "...")
	}
	return Tensor{}, tensorErrorf(name, "the file has no such tensor, it has %d: %q", len(f.tensors), names)
}

// ReadAt fills p with the named tensor's bytes from off on, little endian,
// row-major. Like [io.ReaderAt], it returns io.EOF when the tensor ends before
// p does.
func (f *File) ReadAt(name string, p []byte, off int64) (int, error) {
	section, err := f.Section(name)
	if err != nil || len(p) == 0 {
		return 0, err
	}
	return section.ReadAt(p, off)
}

// Section gives the named tensor's bytes as a stream.
func (f *File) Section(name string) (*io.SectionReader, error) {
	t, err := f.Tensor(name)
	if err != nil {
		return nil, err
	}
	return io.NewSectionReader(f.source, f.data+t.Begin, t.End-t.Begin), nil
}
