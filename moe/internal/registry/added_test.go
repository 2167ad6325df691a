package registry_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/kernel"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
)

// kernels has the kernels of the layer, and one of an added product.
var kernels = append(append(registry.Registry{}, kernel.Kernels...), ReluKernel)

// TestAddedProduct checks that one row is enough to add a product: it has tilings, their costs, a
// kernel, and the pass that tuning checks. Tests of tuning and bench check what they do with it.
func TestAddedProduct(t *testing.T) {
	target, c := driver.H200(), spec.Config{Hidden: 256, Intermediate: 192, NumExperts: 4, TopK: 2}
	p, err := kernels.FindProduct("relu")
	require.NoError(t, err)
	require.Same(t, ReluProduct, p)
	choice := kernels.Choose(tiles.H200, c, target)
	require.Contains(t, p.Space(target), choice["relu"])
	require.NoError(t, kernels.Check(choice, target))
	wrong := choice["relu"]
	wrong.Stages = 99
	require.ErrorContains(t, kernels.Check(tiles.Choice{"relu": wrong}, target), "Tiles of relu.Stages is 99")
	assert.Greater(t, len(p.Candidates(c, target)), 6)
	assert.Positive(t, p.Work(c, 1024).FLOPs)
	require.Equal(t, []registry.Any{ReluKernel}, kernels.OfProduct(p))
	require.Equal(t, registry.Training, kernels.Find("relu").Pass())
	_, err = kernel.Kernels.FindProduct("relu")
	require.Error(t, err, "the layer's own list has not changed")
}

// TestAddedKernel checks the added kernel's results with each tiling that the cost model or tuning
// may choose.
func TestAddedKernel(t *testing.T) {
	const d, n = 192, 192
	p := kt.Ragged()
	x := reference.NewNormal(4, 1).Values(int64(p.Tokens * d))
	w := reference.NewNormal(5, 1/math.Sqrt(d)).Values(int64(len(p.Rows) * n * d))
	for _, tiling := range append(ReluProduct.Space(driver.H200()), kt.Shallow(128)) {
		k := Relu{Config: spec.Config{Hidden: d, Intermediate: n, NumExperts: len(p.Rows)}, Tiling: tiling}
		b := kt.New(t, kt.Early)
		z := b.Room(2 * len(p.Expert) * n)
		kt.Run(b, k, 4, ReluArgs{X: kt.Upload(b, x), Gather: kt.Upload(b, p.Gather), W: kt.Upload(b, w), Z: z, Rows: len(p.Expert), TileArgs: p.Tiles(b)})
		got := kt.Download[uint16](b, z, len(p.Expert)*n)
		for row, e := range p.Expert {
			if e < 0 {
				require.Equal(t, kt.Poisoned[uint16](n), got[row*n:][:n], "row %d belongs to no expert", row)
				continue
			}
			for j := range n {
				sum, slack := kt.Dot(x[int(p.Gather[row])*d:][:d], w[(e*n+j)*d:][:d])
				if !kt.Between(got[row*n+j], math.Max(0, sum), slack) {
					t.Fatalf("%v, row %d of expert %d, column %d: %#x, must be max(0, %g)", tiling, row, e, j, got[row*n+j], sum)
				}
			}
		}
	}
}

// TestEmittedOnce checks that a kernel is emitted once for all layers in which its text is the same,
// and again for others.
func TestEmittedOnce(t *testing.T) {
	l := registry.Layer{Config: spec.Config{Hidden: 256, Intermediate: 192, NumExperts: 4, TopK: 2}}
	l.Tiles = kernels.Choose(tiles.H200, l.Config, driver.H200())
	first, err := ReluKernel.Build(l)
	require.NoError(t, err)
	for _, c := range []struct {
		name   string
		change func(l *registry.Layer)
		same   bool
	}{
		{"nothing", func(*registry.Layer) {}, true},
		{"hint", func(l *registry.Layer) { l.TokensHint = 7 }, true},
		{"tiling of another product", func(l *registry.Layer) { l.Tiles = tiles.Choice{"relu": l.Tiles["relu"]} }, true},
		{"width", func(l *registry.Layer) { l.Hidden = 512 }, false},
		{"tiling", func(l *registry.Layer) { l.Tiles = tiles.Choice{"relu": kt.Shallow(128)} }, false},
		{"shared", func(l *registry.Layer) { l.IsShared = true }, false},
	} {
		other := l
		c.change(&other)
		b, err := ReluKernel.Build(other)
		require.NoError(t, err)
		assert.Equal(t, c.same, b.Source("").Module == first.Source("").Module, c.name)
	}
}
