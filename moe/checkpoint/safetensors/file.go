package safetensors

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"sonicmoe/internal/disk"
)

// lengthBytes is the size of the header's length, at the start of a file.
const lengthBytes = 8

// File is an open safetensors file. It is safe for concurrent use.
type File struct {
	source   io.ReaderAt
	closer   io.Closer // nil if the file was given to New
	data     int64     // offset of the data in the file
	tensors  []Tensor
	byName   map[string]int
	metadata map[string]string
}

// Open opens a regular file and reads its header. The caller must close the file. ctx limits only
// the reading of the header.
func Open(ctx context.Context, path string) (*File, error) {
	file, info, err := disk.OpenRegular(disk.OS, path, true)
	if err != nil {
		return nil, err
	}
	f, err := open(ctx, file, info.Size())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	f.closer = file
	return f, nil
}

// New reads the header of a file of size bytes. It reads nothing past these bytes.
func New(source io.ReaderAt, size int64) (*File, error) {
	return open(context.Background(), source, size)
}

func open(ctx context.Context, source io.ReaderAt, size int64) (*File, error) {
	if size < lengthBytes {
		return nil, headerErrorf("the file has %d bytes, must have the 8 of the header's length", size)
	}
	var length [lengthBytes]byte
	if err := readFull(source, length[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader {
		if kind := otherKind(length[:]); kind != "" {
			return nil, headerErrorf("starts as %s does, must start with a length and JSON: this is no safetensors file", kind)
		}
		return nil, headerErrorf("has %d bytes, must have at most %d", n, maxHeader)
	}
	if int64(n) > size-lengthBytes {
		return nil, headerErrorf("has %d bytes, but the file ends after %d of them", n, size-lengthBytes)
	}
	f := &File{source: source, data: lengthBytes + int64(n), byName: map[string]int{}}
	var err error
	if f.tensors, f.metadata, err = parseHeader(&headerReader{ctx, source, lengthBytes, int64(n)}, size-f.data); err != nil {
		return nil, err
	}
	for i, t := range f.tensors {
		f.byName[t.Name] = i
	}
	return f, nil
}

// otherKind returns the name of another format if the file begins like a file of that format, else
// "".
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

// headerReader reads the next `left` bytes of a source as a stream. It returns an error if its
// context ends or the source ends early.
type headerReader struct {
	ctx      context.Context
	source   io.ReaderAt
	at, left int64
}

// Read implements io.Reader.
func (h *headerReader) Read(p []byte) (int, error) {
	if err := h.ctx.Err(); err != nil {
		return 0, err
	}
	if h.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), h.left)]
	if err := readFull(h.source, p, h.at); err != nil {
		return 0, err
	}
	h.at += int64(len(p))
	h.left -= int64(len(p))
	return len(p), nil
}

// readFull fills p. It returns an error if the source ends early.
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

// Close closes a file that Open opened.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

// Tensors returns the tensors in the order of their data. The caller must not change the slice.
func (f *File) Tensors() []Tensor { return f.tensors }

// Metadata returns a copy of the file's metadata, or nil if the file has none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.metadata) }

// Tensor returns the tensor with the given name, without its data. The error for an unknown name
// lists names of the file.
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

// ReadAt fills p with the named tensor's bytes from off on, little endian and
// row-major. Like [io.ReaderAt] it returns io.EOF if the tensor ends before p does.
func (f *File) ReadAt(name string, p []byte, off int64) (int, error) {
	section, err := f.Section(name)
	if err != nil || len(p) == 0 {
		return 0, err
	}
	return section.ReadAt(p, off)
}

// Section returns the named tensor's bytes as a stream.
func (f *File) Section(name string) (*io.SectionReader, error) {
	t, err := f.Tensor(name)
	if err != nil {
		return nil, err
	}
	return io.NewSectionReader(f.source, f.data+t.Begin, t.End-t.Begin), nil
}
