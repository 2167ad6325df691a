package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/overlaytest"
	"sonicmoe/internal/spec"
)

const root = "../../.."

// TestFilesAreCurrent checks that the generated files are up to date with the table.
func TestFilesAreCurrent(t *testing.T) {
	files, err := generate(root, spec.Tensors)
	require.NoError(t, err)
	for path, want := range files {
		got, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		assert.Equal(t, string(want), string(got), "%s: go generate ./moe renews it", path)
	}
}

// added is a new row for the table.
var added = spec.TensorRow{Name: "B1Scale", C: "b1_scale", Role: spec.RoleExpertWeight, Type: spec.AlwaysF32, Dims: [3]spec.Dim{spec.DimE, spec.DimW1},
	Needs: spec.HasBias, Gradient: true, Doc: "B1Scale [E, 2n] f32 scales B1."}

// TestNewTensorExtendsStructs checks that the fields of a new tensor go to the end of the header's
// structs. A program built with the old header then keeps its layout.
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

// TestNewWeightIsOneRow adds a row to the table, generates the files, and changes no other line. It
// checks that estimates, the arena and the checks of arguments then have the new weight.
func TestNewWeightIsOneRow(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles package moe with another table")
	}
	path := "internal/spec/tensors.go"
	source, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	const next, row = "\t{Name: \"SharedW1\"", `	{Name: "B1Scale", C: "b1_scale", Role: RoleExpertWeight, Type: AlwaysF32, Dims: [3]Dim{DimE, DimW1}, Needs: HasBias, Gradient: true, Doc: "B1Scale [E, 2n] f32 scales B1."},` + "\n"
	require.Equal(t, 1, strings.Count(string(source), next))
	table := slices.Insert(slices.Clone(spec.Tensors), slices.IndexFunc(spec.Tensors, func(r spec.TensorRow) bool { return r.Name == "SharedW1" }), added)
	files, err := generate(root, table)
	require.NoError(t, err)
	files[path] = []byte(strings.Replace(string(source), next, row+next, 1))

	maps.DeleteFunc(files, func(path string, _ []byte) bool { return filepath.Ext(path) != ".go" })
	out := overlaytest.Go(t, root, files, "run", "./moe/internal/tensors/testdata/added")
	c := spec.Config{Hidden: 64, Intermediate: 64, NumExperts: 4, TopK: 2, Bias: true}
	bytes, s := int64(4*4*128), c.Shapes(8)
	for _, id := range spec.Weights {
		bytes += s.Of(id).Bytes()
	}
	require.Equal(t, fmt.Sprintf(`estimate: %d
arena: f32 [4 128] f32 [4 128]
given: <nil>
overlapping: true
absent: B1Scale is missing, must be f32 [4 128]
of another type: B1Scale is bf16 [4 128], must be f32 [4 128]
`, bytes), out)
}
