package weights

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"sonicmoe/internal/num"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/strict"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/safetensors"
)

// This file has stored layers: a safetensors file with a layer's Config, and with its weights in
// the layout and format in which Load loads them.

// The keys of the metadata of a stored layer, and the version of the file's format.
const (
	storedVersion = "1"
	keyVersion    = "sonicmoe.layer" // version of the file's format
	keyConfig     = "config"         // Config as JSON
	keyOutside    = "outside"        // Model.Outside as JSON
)

// Store writes the layer to a file for [OpenStored]. The file is a safetensors file with the Config
// in its metadata. It has the weights as Load loads them, packed weights packed, under their names
// in the C API. Store holds one weight at a time in memory.
func (l *Layer) Store(ctx context.Context, w io.Writer) error {
	config, err := json.Marshal(l.Config)
	if err != nil {
		return err
	}
	outside, err := json.Marshal(l.Model.Outside)
	if err != nil {
		return err
	}
	var list []safetensors.Source
	for _, id := range spec.Weights {
		if s := l.shape(id); !s.IsZero() {
			list = append(list, safetensors.Source{Name: spec.Row(id).C, DType: dtypeOf(s.Type), Shape: s.Dims[:s.Rank], Data: &lazy{read: func() ([]byte, error) { return l.Tensor(ctx, id) }}})
		}
	}
	return safetensors.Write(w, map[string]string{keyVersion: storedVersion, keyConfig: string(config), keyOutside: string(outside)}, list...)
}

// dtypeOf returns the safetensors dtype of a type.
func dtypeOf(t spec.Type) string {
	return map[spec.Type]string{spec.BF16: "BF16", spec.F16: "F16", spec.F32: "F32", spec.U8: "U8"}[t]
}

// lazy is a reader that makes its content when its first byte is read.
type lazy struct {
	read func() ([]byte, error)
	bytes.Reader
	isRead bool
}

// Read reads the next bytes.
func (z *lazy) Read(p []byte) (int, error) {
	if !z.isRead {
		data, err := z.read()
		if err != nil {
			return 0, err
		}
		z.Reset(data)
		z.isRead = true
	}
	return z.Reader.Read(p)
}

// OpenStored opens a layer that Store wrote. The layer's Model has only Config and Outside. The
// weights are in the file as they will be on the device, so Load only copies them.
func OpenStored(ctx context.Context, path string) (*Layer, error) {
	f, err := safetensors.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	l := &Layer{stored: f}
	if err := l.readStored(); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

// readStored reads and checks the file's metadata, and the names, types and extents of its tensors.
func (l *Layer) readStored() error {
	m := l.stored.Metadata()
	if v := m[keyVersion]; v != storedVersion {
		return fmt.Errorf("metadata %s is %q, must be %q: another file, or of another version", keyVersion, v, storedVersion)
	}
	if err := strict.Decode([]byte(m[keyConfig]), &l.Config); err != nil {
		return fmt.Errorf("metadata %s: %w", keyConfig, err)
	}
	if err := moe.Check(l.Config); err != nil {
		return fmt.Errorf("metadata %s: %w", keyConfig, err)
	}
	if text, ok := m[keyOutside]; ok {
		if err := strict.Decode([]byte(text), &l.Model.Outside); err != nil {
			return fmt.Errorf("metadata %s: %w", keyOutside, err)
		}
	}
	l.Model.Config = l.Config
	names := map[string]bool{}
	for _, id := range spec.Weights {
		s := l.shape(id)
		if s.IsZero() {
			continue
		}
		name := spec.Row(id).C
		names[name] = true
		t, err := l.stored.Tensor(name)
		if err != nil {
			return err
		}
		if t.DType != dtypeOf(s.Type) || !slices.Equal(t.Shape, s.Dims[:s.Rank]) {
			return fmt.Errorf("tensor %q is %s %v, must be %s %v", name, t.DType, t.Shape, dtypeOf(s.Type), s.Dims[:s.Rank])
		}
	}
	for _, t := range l.stored.Tensors() {
		if !names[t.Name] {
			return fmt.Errorf("tensor %q is no weight of %v", t.Name, l.Config)
		}
	}
	l.packed = l.Config.Weights
	return nil
}

// storedTensor returns the bytes of a weight of a stored layer. It dequantises the weight if the
// caller has set Config.Weights to "".
func (l *Layer) storedTensor(id spec.TensorID) ([]byte, error) {
	read := func(id spec.TensorID) ([]byte, error) {
		section, err := l.stored.Section(spec.Row(id).C)
		if err != nil {
			return nil, nil // the layer does not have this tensor
		}
		raw := make([]byte, section.Size())
		_, err = io.ReadFull(section, raw)
		return raw, err
	}
	p := spec.PackingNamed(l.packed)
	if p == nil || l.Config.Weights == l.packed || spec.Row(id).Type != spec.OfCodes {
		return read(id)
	}
	of := spec.PackedMatrices[slices.IndexFunc(spec.PackedMatrices, func(m spec.PackedTensors) bool { return m.Codes == id })]
	var m packed.Matrices
	for _, id := range of.All() {
		data, err := read(id)
		if err != nil {
			return nil, err
		}
		*m.Of(of, id) = data
	}
	s := l.plainShape(id)
	to := make([]byte, s.Bytes())
	convert(to, s.Type, num.Bytes(packed.Values(p, m, int(s.Dims[1]), int(s.Dims[2]))), spec.F32)
	return to, nil
}
