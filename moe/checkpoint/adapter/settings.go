package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"

	"sonicmoe/internal/disk"
	"sonicmoe/internal/strict"
)

// The files of an adapter.
const (
	settingsFile = "adapter_config.json"
	tensorsFile  = "adapter_model.safetensors"
	maxSettings  = 1 << 20
)

// settings are the fields of adapter_config.json that decide what the factors mean.
type settings struct {
	Type        string         `json:"peft_type"`
	Rank        int            `json:"r"`
	Alpha       float64        `json:"lora_alpha"`
	RSLoRA      bool           `json:"use_rslora"`
	DoRA        bool           `json:"use_dora"`
	FanInOut    bool           `json:"fan_in_fan_out"`
	Bias        bool           `json:"lora_bias"`
	RankOf      map[string]any `json:"rank_pattern"`
	AlphaOf     map[string]any `json:"alpha_pattern"`
	Dropout     float64        `json:"lora_dropout"`
	Parameters  []string       `json:"target_parameters"`
	Modules     any            `json:"target_modules"`
	Biases      string         `json:"bias"`
	ToSave      []string       `json:"modules_to_save"`
	Replication []any          `json:"layer_replication"`
}

// readSettings reads and checks adapter_config.json.
func readSettings(ctx context.Context, dir string) (s settings, err error) {
	data, err := disk.ReadFile(ctx, disk.OS, filepath.Join(dir, settingsFile), maxSettings)
	if err != nil {
		return s, err
	}
	err = strict.Unmarshal(data, &s)
	if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) {
		return s, fmt.Errorf("%s is of type %s, must be %v", wrong.Field, wrong.Value, wrong.Type)
	}
	if err != nil {
		return s, err
	}
	return s, s.check()
}

func (s *settings) check() error {
	switch {
	case s.Type != "LORA":
		return fmt.Errorf("peft_type is %q, must be \"LORA\"", s.Type)
	case s.Rank < 1 || s.Rank > maxRank:
		return fmt.Errorf("r is %d, must be 1 to %d", s.Rank, maxRank)
	case !(s.Alpha > 0) || math.IsInf(s.Alpha, 0):
		return fmt.Errorf("lora_alpha is %v, must be above 0", s.Alpha)
	case len(s.RankOf) > 0 || len(s.AlphaOf) > 0:
		return errors.New("rank_pattern or alpha_pattern has entries, must be empty: a layer has one rank and one alpha")
	case s.DoRA:
		return errors.New("use_dora is true, must be false")
	case s.FanInOut:
		return errors.New("fan_in_fan_out is true, must be false")
	case s.Bias:
		return errors.New("lora_bias is true, must be false")
	case len(s.Replication) > 0:
		return errors.New("layer_replication has entries, must be empty")
	}
	return nil
}

// text returns adapter_config.json. The file names the adapted weights in target_modules for the
// layout PerExpert, else in target_parameters.
func (s *settings) text(layout Layout) ([]byte, error) {
	of := map[string]any{
		"peft_type": "LORA", "r": s.Rank, "lora_alpha": s.Alpha, "use_rslora": s.RSLoRA, "lora_dropout": 0.0, "bias": "none",
		"fan_in_fan_out": false, "use_dora": false, "inference_mode": true, "task_type": nil, "base_model_name_or_path": nil,
		"target_parameters": nil, "target_modules": []string{},
	}
	if layout == PerExpert {
		of["target_modules"] = s.Modules
	} else {
		of["target_parameters"] = s.Parameters
	}
	return json.MarshalIndent(of, "", "  ")
}
