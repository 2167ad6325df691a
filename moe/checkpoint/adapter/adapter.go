package adapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/safetensors"
)

// Layout says how a file lays out the factors. The package's comment describes the layouts.
type Layout string

const (
	PEFT      Layout = "peft"
	PerExpert Layout = "per-expert"
	Stacked   Layout = "stacked"
)

const (
	maxRank  = 128
	rankStep = 8
)

// Factors are one layer's factors, with the extents and the order of the tensors of the layer's
// [moe.Config]. B3 is nil unless GateUp is "apart".
type Factors struct{ A1, B1, B3, A2, B2 []float32 }

// of returns the field for a tensor of the layer.
func (f *Factors) of(id spec.TensorID) *[]float32 {
	return map[spec.TensorID]*[]float32{spec.TensorLoraA1: &f.A1, spec.TensorLoraB1: &f.B1, spec.TensorLoraB3: &f.B3, spec.TensorLoraA2: &f.A2, spec.TensorLoraB2: &f.B2}[id]
}

var tensorIDs = []spec.TensorID{spec.TensorLoraA1, spec.TensorLoraB1, spec.TensorLoraB3, spec.TensorLoraA2, spec.TensorLoraB2}

// File is an open adapter.
type File struct {
	// Layout is the layout of the file.
	Layout Layout
	// Outside lists the tensors that are no factors of routed experts: factors of attention, of the
	// router or of shared experts, and the weights that modules_to_save names.
	Outside []string
	// Assumed lists settings that Open does not follow, such as dropout, and fields that it does not
	// know.
	Assumed []string

	settings settings
	file     *safetensors.File
	layers   map[int]map[key]string // for each layer, the name of each tensor
	// doubled reports whether some expert has a lora_A for gate that differs from the one for up.
	doubled bool
}

// Open opens the adapter in a folder. The caller must close it.
func Open(ctx context.Context, dir string) (*File, error) {
	f := &File{layers: map[int]map[key]string{}}
	err := f.open(ctx, dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", dir, err), f.Close())
	}
	return f, nil
}

func (f *File) open(ctx context.Context, dir string) (err error) {
	if f.settings, f.Assumed, err = readSettings(ctx, dir); err != nil {
		return fmt.Errorf("%s: %w", settingsFile, err)
	}
	if f.file, err = safetensors.Open(ctx, filepath.Join(dir, tensorsFile)); err != nil {
		return err
	}
	if err = f.list(); err != nil {
		return err
	}
	f.doubled, err = f.isDoubled()
	return err
}

// list finds the factors of each layer.
func (f *File) list() error {
	for _, t := range f.file.Tensors() {
		k, ok, err := parse(t.Name)
		if err != nil {
			return err
		}
		if !ok {
			f.Outside = append(f.Outside, t.Name)
			continue
		}
		if f.Layout != "" && k.layout != f.Layout {
			return fmt.Errorf("tensor %q has the layout %s, must have %s like the tensors before it", t.Name, k.layout, f.Layout)
		}
		f.Layout = k.layout
		if f.layers[k.layer] == nil {
			f.layers[k.layer] = map[key]string{}
		}
		if other, twice := f.layers[k.layer][k]; twice {
			return fmt.Errorf("tensors %q and %q are the same factor of one layer, want one tensor for it", other, t.Name)
		}
		f.layers[k.layer][k] = t.Name
	}
	if len(f.layers) == 0 {
		return errors.New("no tensor is a factor of routed experts: names of such tensors have layers.N and experts")
	}
	return nil
}

// isDoubled reports whether some expert has a lora_A for gate that differs from the one for up.
func (f *File) isDoubled() (bool, error) {
	for layer, tensors := range f.layers {
		for k, name := range tensors {
			if k.isB || k.of == down || f.Layout == PEFT {
				continue
			}
			a, shape, err := f.values(name)
			if err != nil {
				return false, err
			}
			if k.half == whole {
				rows := f.settings.Rank
				if len(shape) != 3 || shape[1] != int64(2*rows) {
					return false, fmt.Errorf("tensor %q is %v, must be [experts, %d, inputs]", name, shape, 2*rows)
				}
				for each, size := int64(0), int64(rows)*shape[2]; each < shape[0]; each++ {
					if first := a[2*each*size:]; !slices.Equal(first[:size], first[size:2*size]) {
						return true, nil
					}
				}
				continue
			}
			other := k
			other.half = gate + up - k.half
			name, ok := f.layers[layer][other]
			if !ok {
				continue // the file adapts only gate, or only up
			}
			b, _, err := f.values(name)
			if err != nil || !slices.Equal(a, b) {
				return err == nil, err
			}
		}
	}
	return false, nil
}

// Close closes the file.
func (f *File) Close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}

// Layers returns the layers that have factors of routed experts.
func (f *File) Layers() []int { return slices.Sorted(maps.Keys(f.layers)) }

// rank returns the rank that a layer needs, before padding.
func (f *File) rank() int {
	if f.doubled {
		return 2 * f.settings.Rank
	}
	return f.settings.Rank
}

// Config returns a layer's Config with the adapter's rank and scale.
func (f *File) Config(c moe.Config) (moe.Config, error) {
	padded := (f.rank() + rankStep - 1) / rankStep * rankStep
	if padded > maxRank {
		return c, fmt.Errorf("the rank is %d, for gate and up have different first factors, must be at most %d", f.rank(), maxRank)
	}
	more := float64(padded) / float64(f.settings.Rank)
	if f.settings.RSLoRA {
		more = math.Sqrt(more)
	}
	c.LoRARank, c.LoRAAlpha, c.RSLoRA = padded, f.settings.Alpha*more, f.settings.RSLoRA
	return c, nil
}

// Load copies the factors of a layer to the device. c is the layer's Config, as Config returns it.
// Load skips a factor whose tensor in to is zero.
func (f *File) Load(s driver.Stream, layer int, c moe.Config, to moe.Weights) error {
	factors, err := f.Factors(layer, c)
	if err != nil {
		return err
	}
	shapes := c.Shapes(0)
	for _, id := range tensorIDs {
		t := to.Weight(id)
		if t.IsZero() {
			continue
		}
		if want := shapes.Of(id); t.Shape != want {
			return &moe.ArgError{Field: id.String(), Got: t.Shape.String(), Want: want.String()}
		}
		if err := s.CopyToDevice(t.Ptr, encode(*factors.of(id), t.Shape.Type)); err != nil {
			return err
		}
	}
	return nil
}

// LoadPlace copies the factors of a layer to a place of the layer's table of adapters, and the
// adapter's scale to LoraScales. [moe.Config].LoRAAdapters describes the table. c is the layer's
// Config. Its rank may be larger than the adapter's. Tokens of later passes on the stream can name
// the place. To remove the adapter, write 0 to the place's scale.
func (f *File) LoadPlace(s driver.Stream, layer, place int, c moe.Config, to moe.Weights) error {
	if place < 0 || place >= c.LoRAAdapters {
		return &moe.ArgError{Field: "place", Got: strconv.Itoa(place), Want: fmt.Sprintf("one of the %d places of Config.LoRAAdapters", c.LoRAAdapters)}
	}
	if f.rank() > c.LoRARank {
		return &moe.ArgError{Field: "Config.LoRARank", Got: strconv.Itoa(c.LoRARank), Want: fmt.Sprintf("at least %d, the rank of the adapter", f.rank())}
	}
	all, one := c.Shapes(0), c
	// InOut does not apply to the factors of a table.
	one.LoRAAdapters, one.InOut = 0, false
	factors, err := f.factors(layer, one)
	if err != nil {
		return err
	}
	shapes := one.Shapes(0)
	for _, id := range append(slices.Clone(tensorIDs), spec.TensorLoraScales) {
		if t, want := to.Weight(id), all.Of(id); t.Shape != want {
			return &moe.ArgError{Field: id.String(), Got: t.Shape.String(), Want: want.String()}
		}
	}
	for _, id := range tensorIDs {
		shape := shapes.Of(id)
		if shape.IsZero() {
			continue
		}
		at := to.Weight(id).Ptr + driver.DevicePtr(int64(place)*shape.Bytes())
		if err := s.CopyToDevice(at, encode(*factors.of(id), shape.Type)); err != nil {
			return err
		}
	}
	scale := []float32{f.scale()}
	return s.CopyToDevice(to.LoraScales.Ptr+driver.DevicePtr(4*place), num.Bytes(scale))
}

// scale returns the number by which the adapter's product is multiplied.
func (f *File) scale() float32 {
	if f.settings.RSLoRA {
		return float32(f.settings.Alpha / math.Sqrt(float64(f.settings.Rank)))
	}
	return float32(f.settings.Alpha / float64(f.settings.Rank))
}

// encode returns numbers in a layer's type.
func encode(values []float32, t moe.Type) []byte {
	bits := make([]uint16, len(values))
	if t == moe.F16 {
		num.EncodeF16(bits, values)
	} else {
		num.EncodeBF16(bits, values)
	}
	return num.Bytes(bits)
}

// values returns the numbers of a tensor and its extents.
func (f *File) values(name string) ([]float32, []int64, error) {
	t, err := f.file.Tensor(name)
	if err != nil {
		return nil, nil, err
	}
	size, err := t.Bytes()
	if err != nil {
		return nil, nil, err
	}
	section, err := f.file.Section(name)
	if err != nil {
		return nil, nil, err
	}
	var raw bytes.Buffer
	if _, err := raw.ReadFrom(section); err != nil {
		return nil, nil, err
	}
	if int64(raw.Len()) != size {
		return nil, nil, fmt.Errorf("tensor %q has %d bytes, must have %d", name, raw.Len(), size)
	}
	return decode(t, raw.Bytes())
}

func decode(t safetensors.Tensor, raw []byte) ([]float32, []int64, error) {
	if t.DType == "F32" {
		out := make([]float32, len(raw)/4)
		copy(num.Bytes(out), raw)
		return out, t.Shape, nil
	}
	bits := make([]uint16, len(raw)/2)
	out := make([]float32, len(bits))
	copy(num.Bytes(bits), raw)
	switch t.DType {
	case "BF16":
		num.DecodeBF16(out, bits)
	case "F16":
		num.DecodeF16(out, bits)
	default:
		return nil, nil, fmt.Errorf("tensor %q is %s, must be BF16, F16 or F32", t.Name, t.DType)
	}
	return out, t.Shape, nil
}
