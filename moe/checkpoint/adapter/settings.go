package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

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
	Type       string   `json:"peft_type"`
	Rank       int      `json:"r"`
	Alpha      float64  `json:"lora_alpha"`
	RSLoRA     bool     `json:"use_rslora"`
	Dropout    float64  `json:"lora_dropout"`
	Biases     string   `json:"bias"`
	Init       any      `json:"init_lora_weights"`
	Parameters []string `json:"target_parameters"`
	Modules    any      `json:"target_modules"`
	// Version is the version of PEFT that wrote the file, since 0.18.
	Version string `json:"peft_version"`
}

// variants are the fields of variants of LoRA that a layer cannot compute.
var variants = []string{
	"alora_invocation_tokens", "alpha_pattern", "arrow_config", "fan_in_fan_out", "kasa_config", "layer_replication", "lora_bias",
	"monteclora_config", "rank_pattern", "use_bdlora", "use_dora", "use_qalora",
}

// changing are the beginnings of the values of init_lora_weights with which PEFT subtracts the first
// factors from the base weights, or quantises these weights. The file does not have the new weights.
var changing = []string{"corda", "loftq", "lora_ga", "olora", "pissa"}

// others are the fields that do not change what an adapter adds to the experts. Some say which weights
// have factors, which the tensors' names and shapes tell too.
var others = []string{
	"auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules", "inference_mode",
	"layers_pattern", "layers_to_transform", "loftq_config", "lora_ga_config", "megatron_config", "megatron_core", "modules_to_save",
	"qalora_group_size", "revision", "runtime_config", "task_type", "trainable_token_indices",
}

// readSettings reads and checks adapter_config.json. It also returns what it assumes about the file.
func readSettings(ctx context.Context, dir string) (s settings, assumed []string, err error) {
	data, err := disk.ReadFile(ctx, disk.OS, filepath.Join(dir, settingsFile), maxSettings)
	if err != nil {
		return s, nil, err
	}
	err = strict.Unmarshal(data, &s)
	if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) {
		return s, nil, fmt.Errorf("%s is of type %s, must be %v", wrong.Field, wrong.Value, wrong.Type)
	}
	all := map[string]any{}
	if err = errors.Join(err, json.Unmarshal(data, &all)); err != nil {
		return s, nil, err
	}
	return s, s.assumed(all), errors.Join(s.check(), checkVariants(all))
}

func (s *settings) check() error {
	init, _ := s.Init.(string)
	changes := slices.ContainsFunc(changing, func(of string) bool { return strings.HasPrefix(strings.ToLower(init), of) })
	switch {
	case s.Type != "LORA":
		return fmt.Errorf("peft_type is %q, must be \"LORA\"", s.Type)
	case s.Rank < 1 || s.Rank > maxRank:
		return fmt.Errorf("r is %d, must be 1 to %d", s.Rank, maxRank)
	case !(s.Alpha > 0) || math.IsInf(s.Alpha, 0):
		return fmt.Errorf("lora_alpha is %v, must be above 0", s.Alpha)
	case s.Biases != "" && s.Biases != "none":
		return fmt.Errorf("bias is %q, must be \"none\": an adapter of experts has no biases", s.Biases)
	case changes:
		return fmt.Errorf("init_lora_weights is %q, must be true: PEFT changes the base weights for it, and the file has no changed weights; save_pretrained with path_initial_model_for_weight_conversion makes an adapter of the unchanged weights", init)
	}
	return nil
}

// checkVariants refuses variants of LoRA that a layer cannot compute.
func checkVariants(all map[string]any) error {
	for _, name := range variants {
		if v := all[name]; !isUnset(v) {
			return fmt.Errorf("%s is %v, must be empty, null or false: a layer adds (alpha/r)·B·A, with one r and one alpha", name, v)
		}
	}
	return nil
}

// assumed lists the settings that Open does not follow.
func (s *settings) assumed(all map[string]any) (list []string) {
	if s.Dropout != 0 {
		list = append(list, fmt.Sprintf("lora_dropout is %v: training goes on without dropout", s.Dropout))
	}
	if v := all["velora_config"]; !isUnset(v) {
		list = append(list, "velora_config is set: training goes on with exact gradients")
	}
	known := slices.Concat(others, variants, []string{"peft_type", "r", "lora_alpha", "use_rslora", "lora_dropout", "bias", "init_lora_weights", "target_parameters", "target_modules", "peft_version", "velora_config"})
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if v := all[name]; !isUnset(v) && !slices.Contains(known, name) {
			list = append(list, fmt.Sprintf("%s is %v: a field that this package does not know and does not use", name, v))
		}
	}
	return list
}

// isUnset reports whether a value of a JSON file is null, false, 0 or empty.
func isUnset(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return v == nil || v == false || v == 0.0 || v == ""
}

// inputsSince is the version of PEFT from which on the columns of lora_A are inputs in all models.
var inputsSince = []int{0, 19, 1}

// readsInputs reports whether the columns of lora_A are surely inputs.
func (s *settings) readsInputs() bool {
	var version []int
	for _, part := range strings.SplitN(s.Version, ".", 4) {
		n, err := strconv.Atoi(part)
		if err != nil {
			break
		}
		version = append(version, n)
	}
	return slices.Compare(version, inputsSince) >= 0
}

// text returns adapter_config.json. The file names the adapted weights in target_modules for the
// layout PerExpert, else in target_parameters.
func (s *settings) text(layout Layout) ([]byte, error) {
	of := map[string]any{
		"peft_type": "LORA", "r": s.Rank, "lora_alpha": s.Alpha, "use_rslora": s.RSLoRA, "lora_dropout": 0.0, "bias": "none",
		"fan_in_fan_out": false, "use_dora": false, "inference_mode": true, "task_type": nil, "base_model_name_or_path": nil,
		"peft_version":      "0.19.1", // as inputsSince
		"target_parameters": nil, "target_modules": []string{},
	}
	if layout == PerExpert {
		of["target_modules"] = s.Modules
	} else {
		of["target_parameters"] = s.Parameters
	}
	return json.MarshalIndent(of, "", "  ")
}
