// This file tests every model type of transformers that mentions experts.
package checkpoint_test

import (
	"encoding/json"
	"flag"
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

var update = flag.Bool("update-types", false, "write testdata/types.txt anew")

// TestTypes checks how Read reads the default config.json of each type, which
// testdata/modeltypes.py takes from transformers. types.txt has the expected results: the layer, or
// the reason of the refusal. Every type must be known.
func TestTypes(t *testing.T) {
	data, err := os.ReadFile("testdata/types.json")
	require.NoError(t, err)
	var configs map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(data, &configs))
	assert.Len(t, configs, 107)
	var out strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(configs)) {
		m, err := checkpoint.Read(configs[kind])
		if err != nil {
			assert.NotContains(t, err.Error(), "is not known", kind)
			fmt.Fprintf(&out, "%s: %v\n", kind, err)
			continue
		}
		fmt.Fprintf(&out, "%s: %v layers=%d/%d\n", kind, m.Config, len(m.MoE), m.Layers)
		for _, what := range m.Outside {
			fmt.Fprintf(&out, "    outside: %s\n", what)
		}
		for _, what := range m.Unknown {
			fmt.Fprintf(&out, "    not read: %s\n", what)
		}
	}
	if *update {
		require.NoError(t, os.WriteFile("testdata/types.txt", []byte(out.String()), 0o600))
	}
	want, err := os.ReadFile("testdata/types.txt")
	require.NoError(t, err)
	assert.Equal(t, string(want), out.String())
}

// TestTextTypesAreKnown checks that the type of a model's text part is known.
func TestTextTypesAreKnown(t *testing.T) {
	for _, kind := range []string{"aria_text", "glm4v_moe_text", "mistral_large4_text", "qwen3_moe_text"} {
		_, err := checkpoint.Read([]byte(fmt.Sprintf(`{"model_type": %q}`, kind)))
		require.Error(t, err, kind) // the config.json has no sizes, so reading it is an error
		assert.NotContains(t, err.Error(), "model_type", kind)
	}
}
