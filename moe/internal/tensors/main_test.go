package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
)

const root = "../../.."

// The generated files match the table.
func TestFilesAreCurrent(t *testing.T) {
	files, err := generate(root, spec.Tensors)
	require.NoError(t, err)
	for path, want := range files {
		got, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		assert.Equal(t, string(want), string(got), "%s: go generate ./moe renews it", path)
	}
}

// added is a row that the table does not have.
var added = spec.TensorRow{Name: "B1Scale", C: "b1_scale", Role: spec.RoleExpertWeight, Type: spec.AlwaysF32, Dims: [3]spec.Dim{spec.DimE, spec.DimW1},
	Needs: spec.HasBias, Gradient: true, Doc: "B1Scale [E, 2n] f32 scales B1."}

// A new tensor's fields go to the end of the structs of the header: a program built
// with the old header keeps its layout.
func TestNewTensorExtendsStructs(t *testing.T) {
	old, err := os.ReadFile(filepath.Join(root, header))
	require.NoError(t, err)
	files, err := generate(root, append(append([]spec.TensorRow(nil), spec.Tensors...), added))
	require.NoError(t, err)
	for name, want := range map[string][]member{
		"sm_forward_pass":  {{"uint64_t", "b1_scale"}},
		"sm_backward_pass": {{"uint64_t", "b1_scale"}, {"sm_gradient", "d_b1_scale"}},
	} {
		before, _, err := members(old, name)
		require.NoError(t, err)
		after, _, err := members(files[header], name)
		require.NoError(t, err)
		require.Equal(t, append(before, want...), after)
	}
	require.Contains(t, string(files["moe/capi/python/sonicmoe_go/_table.py"]), `("b1_scale", "f32", ("E", "w1"), ("bias",), False, True)`)
	_, err = generate(root, []spec.TensorRow{})
	require.NoError(t, err)
	_, _, err = members([]byte(strings.Replace(string(old), "} sm_forward_pass;", "}", 1)), "sm_forward_pass")
	require.ErrorContains(t, err, "has no end")
}
