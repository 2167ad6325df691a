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

// Source is a tensor to be written.
type Source struct {
	Name  string
	DType DType
	Shape []int64
	// Data gives exactly the tensor's bytes, little endian, row-major.
	Data io.Reader
}

// headerAlign is what the data's place in the file is a multiple of. The
// header is filled up with spaces.
const headerAlign = 8

// Write writes a file of these tensors. Each source is read once, as a stream.
// metadata may be nil.
//
// In the file, tensors of wider elements come first, so that each is aligned to
// its elements; those of equal width are in the order given.
func Write(w io.Writer, metadata map[string]string, sources ...Source) error {
	sources = slices.Clone(sources)
	slices.SortStableFunc(sources, func(a, b Source) int { return cmp.Compare(b.DType.Bits(), a.DType.Bits()) })
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

// place gives each source its bytes, one after the other.
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

// encodeHeader gives length, header and its filling.
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
			quote(t.Name), quote(string(t.DType)), quote(dims), t.Begin, t.End)
	}
	b.WriteByte('}')
	for b.Len()%headerAlign != 0 {
		b.WriteByte(' ')
	}
	n := b.Len() - lengthBytes
	if n > MaxHeader {
		return nil, headerErrorf("would have %d bytes, must have at most %d", n, MaxHeader)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(n))
	return b.Bytes(), nil
}

// quote is v as JSON. v is a string, a list of integers or a map of
// strings, which can't fail.
func quote(v any) []byte {
	text, _ := json.Marshal(v)
	return text
}

// copyTensor writes the data of one source, which must have its exact size.
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
