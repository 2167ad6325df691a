package adapter

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"sonicmoe/internal/disk"
	"sonicmoe/internal/num"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/safetensors"
)

const (
	prefix   = "base_model.model."
	fileMode = 0o644
)

// Write writes an adapter to a folder, with FP32 factors. c is the Config of the layers, and layers
// has the factors of each layer. experts is the name of a layer's experts in the model, with %d for
// the layer's number: "model.layers.%d.mlp.experts".
func Write(dir string, layout Layout, experts string, c moe.Config, layers map[int]Factors) error {
	if layout != PEFT && layout != PerExpert && layout != Stacked {
		return &moe.ArgError{Field: "layout", Got: fmt.Sprintf("%q", layout), Want: fmt.Sprintf("%q, %q or %q", PEFT, PerExpert, Stacked)}
	}
	if strings.Count(experts, "%d") != 1 || strings.Count(experts, "%") != 1 || !strings.HasSuffix(experts, ".experts") {
		return &moe.ArgError{Field: "experts", Got: fmt.Sprintf("%q", experts), Want: "a name with one %d that ends in .experts"}
	}
	if c.LoRARank < 1 {
		return &moe.ArgError{Field: "Config.LoRARank", Got: fmt.Sprint(c.LoRARank), Want: "the rank of the adapter"}
	}
	var list []safetensors.Source
	for _, layer := range slices.Sorted(maps.Keys(layers)) {
		first, second, err := unlay(c, layers[layer])
		if err != nil {
			return fmt.Errorf("layer %d: %w", layer, err)
		}
		name := prefix + fmt.Sprintf(experts, layer)
		list = append(list, sources(layout, c, name, first, second)...)
	}
	s := settings{Rank: c.LoRARank, Alpha: c.LoRAAlpha, RSLoRA: c.RSLoRA, Modules: []string{"up_proj", "down_proj"}}
	gateUp := "up_proj"
	if c.Activation.Gated() {
		gateUp, s.Modules = "gate_up_proj", []string{"gate_proj", "up_proj", "down_proj"}
	}
	_, of, _ := strings.Cut(experts, "%d.")
	s.Parameters = []string{of + "." + gateUp, of + ".down_proj"}
	text, err := s.text(layout)
	if err != nil {
		return err
	}
	if err := disk.Replace(disk.OS, filepath.Join(dir, tensorsFile), fileMode, func(w io.Writer) error {
		return safetensors.Write(w, map[string]string{"format": "pt"}, list...)
	}); err != nil {
		return err
	}
	return disk.Replace(disk.OS, filepath.Join(dir, settingsFile), fileMode, func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
}

// unlay is the inverse of lay: it returns the factors of gate and up together, and of down.
func unlay(c moe.Config, f Factors) (first, second *pair, err error) {
	shapes := c.Shapes(0)
	for _, id := range tensorIDs {
		if got, want := len(*f.of(id)), shapes.Of(id).Elements(); int64(got) != want {
			return nil, nil, fmt.Errorf("%v has %d elements, must have %d", id, got, want)
		}
	}
	first, second = newPair(c.NumExperts, c.LoRARank, c.Hidden, c.HWidth()), newPair(c.NumExperts, c.LoRARank, c.Intermediate, c.Hidden)
	for _, of := range []struct {
		p       *pair
		a, b, c []float32
	}{{first, f.A1, f.B1, f.B3}, {second, f.A2, f.B2, nil}} {
		rows := of.p.out
		if of.c != nil {
			rows /= 2
		}
		for e := range of.p.experts {
			for i := range of.p.rank {
				row := of.p.rowA(e, i)
				for k := range row {
					row[k] = of.a[index(c, e, i, k, of.p.rank, of.p.in)]
				}
			}
			for o := range of.p.out {
				b := of.b
				if o >= rows {
					b = of.c
				}
				row := of.p.rowB(e, o)
				for i := range row {
					row[i] = b[index(c, e, o%rows, i, rows, of.p.rank)]
				}
			}
		}
	}
	return first, second, nil
}

// source returns a tensor of FP32 numbers for a file.
func source(name string, values []float32, shape ...int) safetensors.Source {
	dims := make([]int64, len(shape))
	for i, n := range shape {
		dims[i] = int64(n)
	}
	return safetensors.Source{Name: name + ".weight", DType: "F32", Shape: dims, Data: bytes.NewReader(num.Bytes(values))}
}

// sources returns the tensors of a layer in a layout.
func sources(layout Layout, c moe.Config, name string, first, second *pair) []safetensors.Source {
	switch layout {
	case PEFT:
		return append(peftSources(name+".base_layer", first), peftSources(name, second)...)
	case Stacked:
		return append(stackedSources(c, name, first), stackedSource(name+".down_proj", second)...)
	}
	var list []safetensors.Source
	halves := map[string]*pair{"up_proj": first}
	if c.Activation.Gated() {
		halves = map[string]*pair{"gate_proj": halfOf(c, first, 0), "up_proj": halfOf(c, first, 1)}
	}
	halves["down_proj"] = second
	for e := range c.NumExperts {
		for _, of := range slices.Sorted(maps.Keys(halves)) {
			p, at := halves[of], fmt.Sprintf("%s.%d.%s", name, e, of)
			list = append(list, source(at+".lora_A", p.a[e*p.rank*p.in:][:p.rank*p.in], p.rank, p.in),
				source(at+".lora_B", p.b[e*p.out*p.rank:][:p.out*p.rank], p.out, p.rank))
		}
	}
	return list
}

// peftSources returns the factors of a weight in PEFT's order.
func peftSources(name string, p *pair) []safetensors.Source {
	wide := p.experts * p.rank
	b := make([]float32, p.out*wide)
	for e := range p.experts {
		for o := range p.out {
			for i, v := range p.rowB(e, o) {
				b[(o*p.rank+i)*p.experts+e] = v
			}
		}
	}
	return []safetensors.Source{source(name+".lora_A", p.a, wide, p.in), source(name+".lora_B", b, p.out, wide)}
}

// halfOf returns the factors of gate (half 0) or up (half 1).
func halfOf(c moe.Config, first *pair, half int) *pair {
	p := newPair(first.experts, first.rank, first.in, c.Intermediate)
	copy(p.a, first.a)
	for e := range p.experts {
		for o := range p.out {
			copy(p.rowB(e, o), first.rowB(e, rowOf(c, half, o)))
		}
	}
	return p
}

// stackedSources returns the factors of gate and up in the layout Stacked: lora_A has their common A
// twice, and lora_B has the rows of gate before the rows of up.
func stackedSources(c moe.Config, name string, first *pair) []safetensors.Source {
	if !c.Activation.Gated() {
		return stackedSource(name+".up_proj", first)
	}
	both := newPair(first.experts, first.rank, first.in, first.out)
	both.a = make([]float32, 2*len(first.a))
	for h := range 2 {
		p := halfOf(c, first, h)
		for e := range p.experts {
			copy(both.a[(2*e+h)*p.rank*p.in:], p.a[e*p.rank*p.in:][:p.rank*p.in])
			copy(both.b[(2*e+h)*p.out*p.rank:], p.b[e*p.out*p.rank:][:p.out*p.rank])
		}
	}
	name += ".gate_up_proj"
	return []safetensors.Source{source(name+".lora_A", both.a, both.experts, 2*both.rank, both.in), source(name+".lora_B", both.b, both.experts, both.out, both.rank)}
}

func stackedSource(name string, p *pair) []safetensors.Source {
	return []safetensors.Source{source(name+".lora_A", p.a, p.experts, p.rank, p.in), source(name+".lora_B", p.b, p.experts, p.out, p.rank)}
}
