package main

import (
	"context"
	"errors"
	"fmt"

	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/strict"
	"sonicmoe/moe"
)

// layer is a layer whose kernels are stored.
type layer struct {
	name   string
	config moe.Config
	// anyHint asks for the tile shapes of every value of Config.TokensHint. The hint of each
	// program is seldom known when the cache of a fleet is filled.
	anyHint bool
	notes   []string
}

// listed is a layer in a JSON file. Its keys correspond to the fields of moe.Config. A missing
// key has the value that it has for Mixtral's layer.
type listed struct {
	Name          string         `json:"name"`
	Hidden        int            `json:"hidden"`
	Intermediate  int            `json:"intermediate"`
	Experts       int            `json:"experts"`
	TopK          int            `json:"topK"`
	Type          string         `json:"type"`
	GateUp        moe.GateUp     `json:"gateUp"`
	InOut         bool           `json:"inOut"`
	Weights       string         `json:"weights"`
	Activation    moe.Activation `json:"activation"`
	Alpha         float64        `json:"alpha"`
	Limit         float64        `json:"limit"`
	Bias          bool           `json:"bias"`
	LoRARank      int            `json:"loraRank"`
	LoRAAdapters  int            `json:"loraAdapters"`
	LoRAAlpha     float64        `json:"loraAlpha"`
	RSLoRA        bool           `json:"rslora"`
	Logits        string         `json:"logits"`
	RouterF32     bool           `json:"routerF32"`
	RouterBias    bool           `json:"routerBias"`
	Score         moe.Score      `json:"score"`
	SelectionBias bool           `json:"selectionBias"`
	Groups        int            `json:"groups"`
	TopGroups     int            `json:"topGroups"`
	GroupSumOfTwo bool           `json:"groupSumOfTwo"`
	Renormalize   moe.Renorm     `json:"renormalize"`
	NormEpsilon   float64        `json:"normEpsilon"`
	ScoreScale    float64        `json:"scoreScale"`
	ExpertScale   bool           `json:"expertScale"`
	ScoreOnInput  bool           `json:"scoreOnInput"`
	SharedExperts int            `json:"sharedExperts"`
	SharedGate    bool           `json:"sharedGate"`
	Rounding      rounding       `json:"rounding"`
	Lists         bool           `json:"lists"`
	TokensHint    *int           `json:"tokensHint"`
}

// rounding is the JSON form of Config.Rounding.
type rounding struct {
	Rule      moe.RoundingRule `json:"rule"`
	Tile      int              `json:"tile"`
	Capacity  float64          `json:"capacity"`
	RawScores bool             `json:"rawScores"`
}

// readLayers reads a JSON file of layers:
//
//	{"layers": [{"name": "mine", "hidden": 1536, "intermediate": 256, "experts": 128, "topK": 8,
//	             "gateUp": "concatenated", "logits": "bf16", "tokensHint": 24576}]}
//
// Only the sizes are required. Type listed has all fields.
func readLayers(ctx context.Context, path string) ([]layer, error) {
	data, err := command.ReadText(ctx, path)
	if err != nil {
		return nil, err
	}
	layers, err := parseLayers(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return layers, nil
}

func parseLayers(data []byte) ([]layer, error) {
	var file struct {
		Layers []listed `json:"layers"`
	}
	if err := strict.Decode(data, &file); err != nil {
		return nil, err
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
	c := moe.Config{
		Hidden: l.Hidden, Intermediate: l.Intermediate, NumExperts: l.Experts, TopK: l.TopK, GateUp: l.GateUp, InOut: l.InOut, Weights: l.Weights, Activation: l.Activation,
		Alpha: l.Alpha, Limit: l.Limit, Bias: l.Bias, LoRARank: l.LoRARank, LoRAAlpha: l.LoRAAlpha, RSLoRA: l.RSLoRA, LoRAAdapters: l.LoRAAdapters, RouterF32: l.RouterF32, RouterBias: l.RouterBias,
		SelectionBias: l.SelectionBias, Groups: l.Groups, TopGroups: l.TopGroups, GroupSumOfTwo: l.GroupSumOfTwo,
		Score: l.Score, Renormalize: l.Renormalize, NormEpsilon: l.NormEpsilon, ScoreScale: l.ScoreScale,
		ExpertScale: l.ExpertScale, ScoreOnInput: l.ScoreOnInput, SharedExperts: l.SharedExperts, SharedGate: l.SharedGate, Lists: l.Lists,
		Rounding: moe.Rounding{Rule: l.Rounding.Rule, Tile: l.Rounding.Tile, Capacity: l.Rounding.Capacity, RawScores: l.Rounding.RawScores},
	}
	err := errors.Join(
		parse(&c.Type, "type", l.Type),
		parse(&c.Logits, "logits", l.Logits),
	)
	if err != nil {
		return layer{}, err
	}
	if l.TokensHint != nil {
		c.TokensHint = *l.TokensHint
	}
	return layer{name: l.Name, config: c, anyHint: l.TokensHint == nil}, nil
}

// parse reads the name of a number format. "" is the default, which is the zero value.
func parse(into *moe.Type, what, text string) error {
	formats := []moe.Type{moe.BF16, moe.F16, moe.F32}
	for _, t := range formats {
		if text == t.String() || text == "" {
			*into = t
			return nil
		}
	}
	return fmt.Errorf("%s %q: want one of %v", what, text, formats)
}
