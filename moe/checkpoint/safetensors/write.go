package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"
)

// Source is a tensor to write: its name, dtype and shape as in [Tensor], and its data.
type Source struct {
	Name  string
	DType string
	Shape []int64
	// Data must return exactly the tensor's bytes, little endian and row-major.
	Data io.Reader
}

// headerAlign is the alignment of the data in the file. Write pads the header with spaces.
const headerAlign = 8

// Write writes a file of tensors. It reads each source once, as a stream. metadata may be nil.
//
// Tensors with larger elements come first in the file, so that each tensor is aligned to its
// element size. Tensors with the same element size keep their order.
func Write(w io.Writer, metadata map[string]string, sources ...Source) error {
	sources = slices.Clone(sources)
	slices.SortStableFunc(sources, func(a, b Source) int { return cmp.Compare(bits[b.DType], bits[a.DType]) })
	tensors, err := place(sources)
	if err != nil {
		return err
	}
	header, err := encodeHeader(metadata, tensors)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	for i, s := range sources {
		if err := copyTensor(w, s, tensors[i]); err != nil {
			return err
		}
	}
	return nil
}

// place assigns offsets to the sources, one after the other.
func place(sources []Source) ([]Tensor, error) {
	tensors := make([]Tensor, len(sources))
	seen := map[string]bool{metadataKey: true}
	var end int64
	for i, s := range sources {
		t := Tensor{Name: s.Name, DType: s.DType, Shape: s.Shape, Begin: end}
		size, err := t.Bytes()
		switch {
		case err != nil:
			return nil, err
		case seen[s.Name]:
			return nil, tensorErrorf(s.Name, "the name is taken")
		case !utf8.ValidString(s.Name):
			return nil, tensorErrorf(s.Name, "the name is not UTF-8")
		case end+size < end:
			return nil, tensorErrorf(s.Name, "the file would be larger than 2^63 bytes")
		}
		seen[s.Name] = true
		end += size
		t.End = end
		tensors[i] = t
	}
	return tensors, nil
}

// encodeHeader returns the length of the header, the header, and the spaces after it.
func encodeHeader(metadata map[string]string, tensors []Tensor) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, lengthBytes))
	b.WriteByte('{')
	if metadata != nil {
		for k, v := range metadata {
			if !utf8.ValidString(k) || !utf8.ValidString(v) {
				return nil, headerErrorf("metadata %.40q: %.40q is not UTF-8", k, v)
			}
		}
		fmt.Fprintf(&b, "%s:%s", quote(metadataKey), quote(metadata))
	}
	for _, t := range tensors {
		if b.Len() > lengthBytes+1 {
			b.WriteByte(',')
		}
		dims := t.Shape
		if dims == nil {
			dims = []int64{}
		}
		fmt.Fprintf(&b, `%s:{"dtype":%s,"shape":%s,"data_offsets":[%d,%d]}`,
			quote(t.Name), quote(t.DType), quote(dims), t.Begin, t.End)
	}
	b.WriteByte('}')
	for b.Len()%headerAlign != 0 {
		b.WriteByte(' ')
	}
	n := b.Len() - lengthBytes
	if n > maxHeader {
		return nil, headerErrorf("would have %d bytes, must have at most %d", n, maxHeader)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(n))
	return b.Bytes(), nil
}

// quote returns v as JSON. v is a string, a list of integers or a map of strings, so
// encoding cannot fail.
func quote(v any) []byte {
	text, _ := json.Marshal(v)
	return text
}

// copyTensor writes the data of one source. Its size must be exactly the tensor's.
func copyTensor(w io.Writer, s Source, t Tensor) error {
	size := t.End - t.Begin
	if s.Data == nil {
		if size == 0 {
			return nil
		}
		return tensorErrorf(s.Name, "Data is nil, must give %d bytes", size)
	}
	n, err := io.CopyN(w, s.Data, size)
	if err == io.EOF {
		return tensorErrorf(s.Name, "Data ended after %d bytes, must give %d", n, size)
	}
	if err != nil {
		return fmt.Errorf("safetensors: tensor %q: %w", s.Name, err)
	}
	var more [1]byte
	if n, err := io.ReadFull(s.Data, more[:]); n > 0 {
		return tensorErrorf(s.Name, "Data gives more than its %d bytes", size)
	} else if err != io.EOF {
		return fmt.Errorf("safetensors: tensor %q: %w", s.Name, err)
	}
	return nil
}
