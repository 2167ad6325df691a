package weights

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"sonicmoe/driver"
	"sonicmoe/internal/disk"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/strict"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint"
	"sonicmoe/moe/checkpoint/internal/quantisation"
	"sonicmoe/moe/checkpoint/safetensors"
)

// Layer is one expert layer in a model's files. The caller must close it.
type Layer struct {
	// Model is what config.json says.
	Model checkpoint.Model
	// Config is the layer, with its weights laid out as in the files. If the files' format is a
	// format of Config.Weights, the weights are packed. A caller may set Weights to "": Load and
	// Tensor then dequantise.
	Config moe.Config

	dir   string
	where map[string]string // maps each tensor of the model to the name of its file
	open  map[string]*safetensors.File
	parts map[spec.TensorID][]part

	format quantisation.Format // the format that config.json names

	// stored is the file of a layer that OpenStored opened. packed is the format of its weights.
	stored *safetensors.File
	packed string
}

// The largest accepted sizes of a model's files in bytes. The largest published index has some 15
// MB.
const (
	maxConfig = 1 << 20
	maxIndex  = 64 << 20
)

// Open finds the weights of a layer in a model's folder. Layers are counted from 0. Open reads
// config.json, the index and headers, but no weights.
func Open(ctx context.Context, dir string, layer int) (*Layer, error) {
	data, err := disk.ReadFile(ctx, disk.OS, filepath.Join(dir, "config.json"), maxConfig)
	if err != nil {
		return nil, err
	}
	model, err := checkpoint.Read(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if !slices.Contains(model.MoE, layer) {
		return nil, fmt.Errorf("%s: layer %d has no experts; layers with experts: %v", dir, layer, model.MoE)
	}
	l := &Layer{Model: model, Config: model.Config, dir: dir, open: map[string]*safetensors.File{}, parts: map[spec.TensorID][]part{}, format: quantisation.Find(data)}
	if l.where, err = files(ctx, dir); err == nil {
		err = l.find(ctx, layer)
	}
	switch {
	case err != nil && l.format.Refused != "":
		err = fmt.Errorf("the weights are quantised, %s: %w", model.Quantised, err)
	case err != nil && l.format.Text != "":
		err = fmt.Errorf("the weights are quantised, %s: %w", l.format.Text, err)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", dir, err), l.Close())
	}
	return l, nil
}

// files maps each tensor to its file. It reads the index or, if there is none, the headers of all
// files.
func files(ctx context.Context, dir string) (map[string]string, error) {
	const index = "model.safetensors.index.json"
	data, err := disk.ReadFile(ctx, disk.OS, filepath.Join(dir, index), maxIndex)
	if err == nil {
		where, err := parseIndex(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", index, err)
		}
		return where, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	list, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil || len(list) == 0 {
		return nil, errors.Join(errors.New("there is neither model.safetensors.index.json nor a .safetensors file"), err)
	}
	where := map[string]string{}
	for _, path := range list {
		f, err := safetensors.Open(ctx, path)
		if err != nil {
			return nil, err
		}
		tensors := f.Tensors()
		if err := f.Close(); err != nil {
			return nil, err
		}
		for _, t := range tensors {
			if other, ok := where[t.Name]; ok {
				return nil, fmt.Errorf("tensor %q is in %s and in %s, must be in one, or %s must say in which", t.Name, other, filepath.Base(path), index)
			}
			where[t.Name] = filepath.Base(path)
		}
	}
	return where, nil
}

// parseIndex reads an index: {"weight_map": {"name": "file", …}}.
func parseIndex(data []byte) (map[string]string, error) {
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	err := strict.Unmarshal(data, &index)
	if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) || err == nil && index.WeightMap == nil {
		return nil, errors.New("must be an object whose weight_map has the file of each tensor")
	}
	for name, file := range index.WeightMap {
		if !filepath.IsLocal(file) {
			return nil, fmt.Errorf("%q is in %q, must be a file of the folder", name, file)
		}
	}
	return index.WeightMap, err
}

// find finds the tensors that make up each weight, and checks that they give all of its elements.
func (l *Layer) find(ctx context.Context, layer int) error {
	list, err := parts(slices.Sorted(maps.Keys(l.where)), layer, l.Model.Type)
	if err != nil {
		return err
	}
	for _, p := range list {
		if p.tensor == spec.TensorSharedW3 && !l.Config.Activation.Gated() {
			p.tensor = spec.TensorSharedW1
		}
		l.parts[p.tensor] = append(l.parts[p.tensor], p)
	}
	if l.Model.Type == "axk1" && l.parts[spec.TensorSelectionBias] == nil {
		l.Config.SelectionBias = false // the released files have no such bias, and transformers then uses zeros
	}
	if err := l.lay(ctx); err != nil {
		return err
	}
	for _, id := range spec.Weights {
		if spec.Row(id).IsOnlyPacked() {
			continue // these tensors belong to weights, which read them
		}
		s, of := l.shape(id), l.parts[id]
		switch {
		case s.IsZero() && of != nil:
			return fmt.Errorf("tensor %q is the layer's %v, which %v does not have", of[0].name, id, l.Config)
		case !s.IsZero() && of == nil:
			return fmt.Errorf("the layer has no %v %v, must have it with %v", id, s, l.Config)
		}
		if err := l.cover(id, s); err != nil {
			return err
		}
	}
	return l.pack(ctx)
}

// shape returns the shape of a weight, or the zero Shape if the layer does not have the weight.
func (l *Layer) shape(id spec.TensorID) spec.Shape {
	s := l.Config.Shapes(0)
	return s.Of(id)
}

// plainShape returns the shape that a weight has if it is not packed.
func (l *Layer) plainShape(id spec.TensorID) spec.Shape {
	c := l.Config
	c.Weights = ""
	s := c.Shapes(0)
	return s.Of(id)
}

// Close closes the files.
func (l *Layer) Close() error {
	var errs []error
	for _, f := range l.open {
		errs = append(errs, f.Close())
	}
	if l.stored != nil {
		errs = append(errs, l.stored.Close())
	}
	l.open = nil
	return errors.Join(errs...)
}

// Load copies the layer's weights to the device. It skips a weight whose tensor in to is zero.
func (l *Layer) Load(ctx context.Context, s driver.Stream, to moe.Weights) error {
	for _, id := range spec.Weights {
		t := to.Weight(id)
		if t.IsZero() {
			continue
		}
		data, err := l.Tensor(ctx, id)
		if err == nil && t.Shape != l.shape(id) {
			err = &moe.ArgError{Field: id.String(), Got: t.Shape.String(), Want: l.shape(id).String()}
		}
		if err == nil {
			err = s.CopyToDevice(t.Ptr, data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Tensor returns the bytes of a weight, or nil if the layer does not have the weight.
func (l *Layer) Tensor(ctx context.Context, id moe.TensorID) ([]byte, error) {
	if !slices.Contains(spec.Weights, id) {
		return nil, &moe.ArgError{Field: "id", Got: id.String(), Want: "a weight"}
	}
	s := l.shape(id)
	if s.IsZero() {
		return nil, nil
	}
	if l.stored != nil {
		return l.storedTensor(id)
	}
	if spec.IsPacked(l.Config) && spec.Row(id).IsOfPacked() {
		return l.packedTensor(ctx, id)
	}
	to := make([]byte, s.Bytes())
	for _, p := range l.parts[id] {
		if p.piece == scales {
			continue
		}
		at, count, err := l.place(p, s)
		if err != nil {
			return nil, err
		}
		if err := l.read(ctx, to[at*s.Type.Bytes():][:count*s.Type.Bytes()], s.Type, p); err != nil {
			return nil, err
		}
	}
	return to, nil
}

// path returns the path of the file of a tensor.
func (l *Layer) path(name string) string { return filepath.Join(l.dir, l.where[name]) }

// file returns the open file of a tensor. It opens the file if necessary.
func (l *Layer) file(ctx context.Context, name string) (*safetensors.File, error) {
	path := l.path(name)
	if f := l.open[path]; f != nil {
		return f, nil
	}
	f, err := safetensors.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	l.open[path] = f
	return f, nil
}
