package weights

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"sonicmoe/examples/layer/safetensors"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// Layer is one expert layer of a model's files. Close it when done.
type Layer struct {
	// Model is what config.json says, and Config the layer, with weights laid out
	// as these files have them.
	Model  moe.Model
	Config moe.Config
	// where is the file of each tensor of the checkpoint, open those in use.
	dir   string
	where map[string]string
	open  map[string]*safetensors.File
	parts map[string][]part // by the layer's tensor
}

// Open finds the experts of a layer, counted from 0, in a model's folder. It
// reads no weights yet.
func Open(dir string, layer int) (*Layer, error) {
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	model, err := moe.FromConfig(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if !slices.Contains(model.MoE, layer) {
		return nil, fmt.Errorf("%s: layer %d has no experts; those that have: %v", dir, layer, model.MoE)
	}
	l := &Layer{Model: model, Config: model.Config, dir: dir, open: map[string]*safetensors.File{}, parts: map[string][]part{}}
	if l.where, err = files(dir); err == nil {
		err = l.find(layer)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", dir, err), l.Close())
	}
	return l, nil
}

// files gives the file of each tensor: by the index, or by the files themselves.
func files(dir string) (map[string]string, error) {
	const index = "model.safetensors.index.json"
	data, err := os.ReadFile(filepath.Join(dir, index))
	if err == nil {
		var of struct {
			WeightMap map[string]string `json:"weight_map"`
		}
		err := json.Unmarshal(data, &of)
		if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) || err == nil && of.WeightMap == nil {
			err = errors.New("must be an object whose weight_map has the file of each tensor")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", index, err)
		}
		for name, file := range of.WeightMap {
			if !filepath.IsLocal(file) {
				return nil, fmt.Errorf("%s: %q is in %q, must be a file of the folder", index, name, file)
			}
		}
		return of.WeightMap, nil
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
		f, err := safetensors.Open(path)
		if err != nil {
			return nil, err
		}
		for _, t := range f.Tensors() {
			if other, ok := where[t.Name]; ok {
				return nil, errors.Join(fmt.Errorf("tensor %q is in %s and in %s, must be in one, or %s say in which", t.Name, other, filepath.Base(path), index), f.Close())
			}
			where[t.Name] = filepath.Base(path)
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	return where, nil
}

// find sorts the layer's tensors.
func (l *Layer) find(layer int) error {
	list, err := parts(slices.Sorted(maps.Keys(l.where)), layer, l.Model.Type)
	if err != nil {
		return err
	}
	for _, p := range list {
		if p.tensor == "SharedW3" && !l.Config.Activation.Gated() {
			p.tensor = "SharedW1"
		}
		l.parts[p.tensor] = append(l.parts[p.tensor], p)
	}
	if l.Model.Type == "axk1" && l.parts["SelectionBias"] == nil {
		l.Config.SelectionBias = false // the released files have none, and transformers takes zeros
	}
	if err := l.lay(); err != nil {
		return err
	}
	shapes := l.shapes()
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		s, of := shapes[name], l.parts[name]
		switch {
		case s.IsZero() && of != nil:
			return fmt.Errorf("tensor %q is the layer's %s, which %v does not have", of[0].name, name, l.Config)
		case !s.IsZero() && of == nil:
			return fmt.Errorf("the layer has no %s %v, must have it with %v", name, s, l.Config)
		}
		if err := l.cover(name, s); err != nil {
			return err
		}
	}
	return nil
}

// shapes are those of the weights, by name.
func (l *Layer) shapes() map[string]spec.Shape {
	s := l.Config.Shapes(0)
	return map[string]spec.Shape{
		"Router": s.Router, "RouterBias": s.RouterBias, "SelectionBias": s.SelectionBias, "ExpertScale": s.ExpertScale,
		"W1": s.W1, "W3": s.W3, "W2": s.W2, "B1": s.B1, "B3": s.B3, "B2": s.B2,
		"SharedW1": s.SharedW1, "SharedW3": s.SharedW3, "SharedW2": s.SharedW2, "SharedGate": s.SharedGate,
	}
}

// Shape is that of a weight, by its name in [spec.Shapes].
func (l *Layer) Shape(name string) spec.Shape { return l.shapes()[name] }

// Close closes the files.
func (l *Layer) Close() error {
	var errs []error
	for _, f := range l.open {
		errs = append(errs, f.Close())
	}
	l.open = nil
	return errors.Join(errs...)
}

// Tensor gives the bytes of a weight, by its name in [spec.Shapes]: W1, Router.
// It is nil for one that the layer does not have.
func (l *Layer) Tensor(name string) ([]byte, error) {
	s, ok := l.shapes()[name]
	if !ok {
		return nil, &moe.ArgError{Field: "name", Got: name, Want: "a weight of spec.Shapes"}
	}
	if s.IsZero() {
		return nil, nil
	}
	to := make([]byte, s.Bytes())
	list := l.parts[name]
	for _, p := range list {
		if p.piece == scales {
			continue
		}
		at, count, err := l.place(p, s)
		if err != nil {
			return nil, err
		}
		if err := l.read(to[at*s.Type.Bytes():][:count*s.Type.Bytes()], s.Type, p, list); err != nil {
			return nil, fmt.Errorf("%s: tensor %q: %w", l.where[p.name], p.name, err)
		}
	}
	return to, nil
}

// file opens the file of a tensor, once.
func (l *Layer) file(name string) (*safetensors.File, error) {
	path := l.where[name]
	if f := l.open[path]; f != nil {
		return f, nil
	}
	f, err := safetensors.Open(filepath.Join(l.dir, path))
	if err != nil {
		return nil, err
	}
	l.open[path] = f
	return f, nil
}
