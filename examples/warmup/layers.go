package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"sonicmoe/moe"
)

// layer is a layer to warm.
type layer struct {
	name   string
	config moe.Config
	// anyHint asks for the tile shapes of every Config.TokensHint: who fills a
	// fleet's cache seldom knows what each program will say.
	anyHint bool
	notes   []string
}

// listed is a layer in a JSON file.
type listed struct {
	Name         string `json:"name"`
	Hidden       int    `json:"hidden"`
	Intermediate int    `json:"intermediate"`
	Experts      int    `json:"experts"`
	TopK         int    `json:"topK"`
	GateUp       string `json:"gateUp"`
	Logits       string `json:"logits"`
	TokensHint   *int   `json:"tokensHint"`
}

// readLayers reads a JSON file of layers:
//
//	{"layers": [{"name": "mine", "hidden": 1536, "intermediate": 256, "experts": 128, "topK": 8,
//	             "gateUp": "concatenated", "logits": "bf16", "tokensHint": 24576}]}
//
// The last three may be missing.
func readLayers(path string) ([]layer, error) {
	data, err := readText(path)
	if err != nil {
		return nil, err
	}
	layers, err := parseLayers(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return layers, nil
}

// maxText bounds the files that people write, in bytes.
const maxText = 1 << 20

// readText reads a file of text, whatever it is: a device never ends.
func readText(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxText+1))
	if err == nil && len(data) > maxText {
		err = fmt.Errorf("%s: more than %d bytes", path, maxText)
	}
	return data, err
}

func parseLayers(data []byte) ([]layer, error) {
	var file struct {
		Layers []listed `json:"layers"`
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("text after the end of the JSON")
	}
	if len(file.Layers) == 0 {
		return nil, errors.New(`no layers; want {"layers": [{"hidden": …, "intermediate": …, "experts": …, "topK": …}]}`)
	}
	var layers []layer
	for i, l := range file.Layers {
		made, err := l.layer()
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		if made.name == "" {
			made.name = fmt.Sprintf("layer %d", i)
		}
		layers = append(layers, made)
	}
	return layers, nil
}

func (l listed) layer() (layer, error) {
	c := moe.Config{Hidden: l.Hidden, Intermediate: l.Intermediate, NumExperts: l.Experts, TopK: l.TopK}
	var err error
	if c.GateUp, err = parseGateUp(l.GateUp); err != nil {
		return layer{}, err
	}
	if c.Logits, err = parseLogits(l.Logits); err != nil {
		return layer{}, err
	}
	if l.TokensHint != nil {
		c.TokensHint = *l.TokensHint
	}
	return layer{name: l.Name, config: c, anyHint: l.TokensHint == nil}, nil
}

// parseGateUp reads an order of W1's rows; "" is the usual one.
func parseGateUp(text string) (moe.GateUp, error) {
	for _, g := range []moe.GateUp{moe.Concatenated, moe.Interleaved} {
		if text == g.String() || text == "" {
			return g, nil
		}
	}
	return 0, fmt.Errorf("gate-up order %q: want %v or %v", text, moe.Concatenated, moe.Interleaved)
}

// parseLogits reads a format of router logits; "" is the usual one.
func parseLogits(text string) (moe.Logits, error) {
	for _, l := range []moe.Logits{moe.LogitsBF16, moe.LogitsF32} {
		if text == l.String() || text == "" {
			return l, nil
		}
	}
	return 0, fmt.Errorf("logits %q: want %v or %v", text, moe.LogitsBF16, moe.LogitsF32)
}
