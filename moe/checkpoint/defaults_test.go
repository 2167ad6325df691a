package checkpoint_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/moe/checkpoint"
)

// TestMissingFields removes each field of the default config.json of each model type. It checks
// that the layer does not change, or that the error says that the field must be present.
func TestMissingFields(t *testing.T) {
	data, err := os.ReadFile("testdata/types.json")
	require.NoError(t, err)
	var configs map[string]map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(data, &configs))
	// changes lists types whose default config.json has no experts, or has values for which the
	// layer stays the same without a field. The test adds the listed fields before it removes one.
	type change struct{ kind, fields string }
	changes := []change{
		{"cohere2_moe", `{"num_shared_experts": 1}`},
		{"deepseek_ocr2_text", `{"num_experts_per_tok": 6, "moe_intermediate_size": 896, "first_k_dense_replace": 1}`},
		{"deepseek_v2", `{"num_experts_per_tok": 6, "moe_intermediate_size": 1408, "n_group": 8, "topk_group": 3}`},
		{"diffusion_gemma_text", `{"num_experts": 8, "moe_intermediate_size": 704, "top_k_experts": 2}`},
		{"dots1", `{"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6}`},
		{"dots3_note_text", `{"moe_intermediate_size": 768}`},
		{"gemma4_text", `{"enable_moe_block": true, "num_experts": 8, "moe_intermediate_size": 704, "top_k_experts": 2}`},
		{"granitemoehybrid", `{"intermediate_size": 512}`},
		{"nemotron_h", `{"moe_intermediate_size": 1024, "moe_shared_expert_intermediate_size": 2048}`},
		{"qwen3_omni_moe_talker_text", `{"shared_expert_intermediate_size": 768}`},
	}
	for kind := range configs {
		changes = append(changes, change{kind, "{}"})
	}
	read := func(config map[string]json.RawMessage) string {
		data, err := json.Marshal(config)
		require.NoError(t, err)
		m, err := checkpoint.Read(data)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("%v, %v of %d layers", m.Config, m.MoE, m.Layers)
	}
	seen := 0
	for _, c := range changes {
		config := maps.Clone(configs[c.kind])
		require.NoError(t, json.Unmarshal([]byte(c.fields), &config), c.kind)
		want := read(config)
		if config["text_config"] != nil || config["thinker_config"] != nil || strings.Contains(want, "is refused") || strings.Contains(want, "config.json has no") {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(config)) {
			if name == "model_type" || strings.HasSuffix(name, "_config") || strings.Contains(c.fields, `"`+name+`"`) {
				continue
			}
			without := maps.Clone(config)
			delete(without, name)
			got := read(without)
			if !strings.Contains(got, "config.json has no") || !strings.Contains(got, name) {
				assert.Equal(t, want, got, "%s without %s", c.kind, name)
			}
			seen++
		}
	}
	assert.Greater(t, seen, 800)
}
