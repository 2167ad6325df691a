package weights

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
	"sonicmoe/moe/checkpoint/safetensors"
)

// TestStored checks that a stored layer has the same weights as the files from which it was made,
// packed and dequantised.
func TestStored(t *testing.T) {
	for _, f := range publishedFormats() {
		t.Run(f.name, func(t *testing.T) {
			config, list := publishedLayer(f)
			l, err := Open(t.Context(), write(t, config, list...), 1)
			require.NoError(t, err)
			defer l.Close()
			path := filepath.Join(t.TempDir(), "layer.safetensors")
			var file bytes.Buffer
			require.NoError(t, l.Store(t.Context(), &file))
			require.NoError(t, os.WriteFile(path, file.Bytes(), 0o600))
			stored, err := OpenStored(t.Context(), path)
			require.NoError(t, err)
			defer stored.Close()
			require.Equal(t, l.Config, stored.Config)
			for _, word := range []string{l.Config.Weights, ""} {
				l.Config.Weights, stored.Config.Weights = word, word
				for _, id := range spec.Weights {
					want, err := l.Tensor(t.Context(), id)
					require.NoError(t, err)
					got, err := stored.Tensor(t.Context(), id)
					require.NoError(t, err)
					require.Equal(t, want, got, "%v, weights %q", id, word)
				}
			}
		})
	}
}

// TestStoredRefuses checks the errors for files that OpenStored cannot use.
func TestStoredRefuses(t *testing.T) {
	config, list := publishedLayer(publishedFormats()[0])
	l, err := Open(t.Context(), write(t, config, list...), 1)
	require.NoError(t, err)
	defer l.Close()
	var file bytes.Buffer
	require.NoError(t, l.Store(t.Context(), &file))
	text, err := json.Marshal(l.Config)
	require.NoError(t, err)
	_, err = OpenStored(t.Context(), filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	for _, tt := range []struct {
		name     string
		metadata map[string]string
		without  string // a tensor to leave out
		want     string
	}{
		{"a file of tensors", nil, "", `metadata sonicmoe.layer is "", must be "1"`},
		{"a later version", map[string]string{keyVersion: "2", keyConfig: string(text)}, "", `metadata sonicmoe.layer is "2", must be "1"`},
		{"a field that is not known", map[string]string{keyVersion: "1", keyConfig: `{"Depth": 3}`}, "", `metadata config: json: unknown field "Depth"`},
		{"a field twice", map[string]string{keyVersion: "1", keyConfig: `{"TopK": 1, "TopK": 2}`}, "", `metadata config: the field TopK stands twice`},
		{"text after the layer", map[string]string{keyVersion: "1", keyConfig: string(text) + "1"}, "", `metadata config: text after the end of the JSON`},
		{"no layer", map[string]string{keyVersion: "1", keyConfig: `{}`}, "", "metadata config: Config.Hidden is 0"},
		{"other extents", map[string]string{keyVersion: "1", keyConfig: strings.Replace(string(text), `"NumExperts":2`, `"NumExperts":3`, 1)}, "", `tensor "router" is BF16 [2 96], must be BF16 [3 96]`},
		{"a missing tensor", map[string]string{keyVersion: "1", keyConfig: string(text)}, "w2_scale", `"w2_scale"`},
		{"a tensor too many", map[string]string{keyVersion: "1", keyConfig: strings.Replace(string(text), `"SelectionBias":true`, `"SelectionBias":false`, 1)}, "", `tensor "selection_bias" is no weight of`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			from, err := safetensors.New(bytes.NewReader(file.Bytes()), int64(file.Len()))
			require.NoError(t, err)
			var sources []safetensors.Source
			for _, tensor := range from.Tensors() {
				section, err := from.Section(tensor.Name)
				require.NoError(t, err)
				if tensor.Name != tt.without {
					sources = append(sources, safetensors.Source{Name: tensor.Name, DType: tensor.DType, Shape: tensor.Shape, Data: section})
				}
			}
			path := filepath.Join(t.TempDir(), "layer.safetensors")
			f, err := os.Create(path)
			require.NoError(t, err)
			require.NoError(t, safetensors.Write(f, tt.metadata, sources...))
			require.NoError(t, f.Close())
			_, err = OpenStored(t.Context(), path)
			require.ErrorContains(t, err, tt.want)
			assert.ErrorContains(t, err, path)
		})
	}
}
