package kernel

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe/internal/kernel/dh"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
)

// TestChoose checks that the cost model picks the tilings that were faster on an
// H200.
func TestChoose(t *testing.T) {
	for _, m := range []struct {
		row     string
		product spec.ProductID
		tiling  string
	}{
		{"30B n=512", spec.ProductUp, "128x256 s4 p8 c2"}, {"DeepSeek-V3", spec.ProductUp, "128x256 s4 p8 c2"},
		{"7B n=512", spec.ProductDown, "128x256 s4 p8 c1"}, {"120B n=2048", spec.ProductDown, "128x256 s4 p8 c2"},
		{"7B n=256", spec.ProductDH, "128x128 s6 p8 c1"}, {"30B n=256", spec.ProductDH, "128x128 s6 p8 c2"},
	} {
		r, ok := peers.Find(m.row)
		require.True(t, ok)
		require.Equal(t, m.tiling, Choose(r.Config, driver.H200())[m.product].String(), m.row)
	}
}

// TestSharedBytes checks that every tiling of every search space fits the chip's shared memory, and
// that a product's formula SharedBytes is a close upper bound of what its kernels use.
func TestSharedBytes(t *testing.T) {
	c := spec.Config{Hidden: 256, Intermediate: 128, NumExperts: 8, TopK: 2, Bias: true, Weights: "fp8"} // biases, because their rows also take shared memory; packed weights for the Up next to Unpack
	for _, p := range Kernels.Products() {
		for _, tiling := range p.Space(driver.H200()) {
			for _, k := range Kernels.OfProduct(p) {
				b, err := k.Build(registry.Layer{Config: c, Tiles: tiles.Choice{}.With(p.ID, tiling)})
				require.NoError(t, err)
				used, bound := b.Source("").SharedBytes, p.SharedBytes(tiling)
				assert.LessOrEqual(t, used, bound, "%s %v", k.Name(), tiling)
				slack := 512
				if p == DXProduct {
					slack += lineRoom(tiling) // only FP32 weights of a router fill it
				}
				assert.Greater(t, used, bound-slack, "%s %v", k.Name(), tiling)
				assert.LessOrEqual(t, bound, driver.H200().SharedBytesPerCTA)
			}
		}
	}
}

// TestRegistry checks that names of kernels and of their entries are unique, and
// every kernel builds.
func TestRegistry(t *testing.T) {
	names, entries := map[string]bool{}, map[string]bool{}
	l := registry.Layer{Config: spec.Config{Hidden: 256, Intermediate: 128, NumExperts: 8, TopK: 2}}
	l.Tiles = Choose(l.Config, driver.H200())
	other := l // other is a layer with every optional tensor
	other.Bias, other.Rounding = true, spec.Rounding{Rule: spec.RoundNearest, Tile: 128}
	chosen := l // chosen are layers with the other kinds of routers
	chosen.Score, chosen.RouterBias, chosen.ExpertScale, chosen.SelectionBias = spec.Sigmoid, true, true, true
	chosen.RouterF32, chosen.Logits = true, spec.F32
	packed := l
	packed.Weights = "mxfp4"
	adapted := l
	adapted.LoRARank, adapted.LoRAAlpha = 12, 16 // a rank that Pad pads
	wide := adapted                              // dH and dO are read twice
	wide.LoRARank = 32
	table := l
	table.LoRARank, table.LoRAAdapters = 16, 3
	for _, k := range Kernels {
		require.False(t, names[k.Name()], k.Name())
		names[k.Name()] = true
		of := l
		for _, o := range []registry.Layer{other, chosen, packed, adapted, wide, table} {
			if !k.Suits(of.Config) {
				of = o
			}
		}
		require.True(t, k.Suits(of.Config), "%s is of no layer here", k.Name())
		b, err := k.Build(of)
		require.NoError(t, err)
		require.False(t, entries[b.Source("").Name], "errors go by the entry's name: %s", b.Source("").Name)
		entries[b.Source("").Name] = true
	}
	_, err := Kernels.FindProduct("sideways")
	assert.ErrorContains(t, err, `product is sideways, must be one of [up down dh dw2 dw1 dx]`)
	require.NoError(t, Kernels.Check(l.Tiles, driver.H200()))
	assert.ErrorContains(t, Kernels.Check(tiles.Choice{spec.ProductUp: {Stages: 4}}, driver.H200()), "Tiles of up.TileN is 0")
	for id := range spec.Products {
		p := Kernels.Product(spec.ProductID(id))
		require.NotNil(t, p, "no kernel has the product %v", spec.ProductID(id))
		require.Equal(t, p, Kernels.Products()[id], "products are listed by id")
	}
}

// TestWork checks that the work of a pass's kernels adds up to the work of the pass's roofline.
func TestWork(t *testing.T) {
	c := peers.All()[3].Config
	const tokens = 1000
	for _, pass := range []struct {
		work    []spec.Work
		kernels []string
	}{
		{spec.ForwardWork(c, tokens), []string{"router", "plan", "up", "down", "aggregate"}},
		{spec.InferenceWork(c, tokens), []string{"router", "plan", "up-inference", "down", "aggregate"}},
		{spec.BackwardWork(c, tokens), []string{"count", "plan-pairs", "dh", "dscores", "plan-splits", "dw2", "dx", "dw1-add", "sum"}},
	} {
		var have []spec.Work
		for _, name := range pass.kernels {
			k := Kernels.Find(name)
			require.NotNil(t, k, name)
			have = append(have, k.Work(c, tokens)...)
		}
		require.ElementsMatch(t, pass.work, have, "%v", pass.kernels)
	}
	require.Nil(t, Kernels.Find("sideways"))
}

// TestAlternatives checks the list of alternatives of each product: the list has the whole search
// space and the cost model's choice, none of them rejected, and Product.Check accepts each tiling
// that is not rejected.
func TestAlternatives(t *testing.T) {
	target := driver.H200()
	for _, row := range peers.All() {
		chosen := Choose(row.Config, target)
		for _, p := range Kernels.Products() {
			tried, all := 0, map[gemm.Tiling]tiles.Alternative{}
			for _, a := range p.Alternatives(row.Config, target) {
				require.NotContains(t, all, a.Tiling, "listed twice")
				all[a.Tiling] = a
				if a.Rejected != "" {
					assert.Zero(t, a.Estimate)
					continue
				}
				tried++
				assert.Positive(t, a.Estimate)
				require.NoError(t, p.Check(a.Tiling, target), "%s %v", p, a.Tiling)
			}
			assert.GreaterOrEqual(t, tried, 6, p.String())
			assert.LessOrEqual(t, tried, 32, p.String())
			for _, q := range append(p.Space(target), chosen[p.ID]) {
				require.Contains(t, all, q, p.String())
				assert.Empty(t, all[q].Rejected, "%s %v", p, q)
			}
		}
	}
}

// TestAlternativesOfAnotherChip checks that a chip with less shared memory rejects
// more tilings, and that the reason names the chip's bytes.
func TestAlternativesOfAnotherChip(t *testing.T) {
	small := driver.H200()
	small.SharedBytesPerCTA = 180 << 10
	reasons := map[string]int{}
	for _, a := range UpProduct.Alternatives(peers.All()[0].Config, small) {
		reasons[a.Rejected]++
	}
	assert.NotZero(t, reasons["more than 3 stages of 256 columns do not fit in a CTA's 184320 bytes of shared memory"], reasons)
	assert.NotZero(t, reasons["this product has no tile of 192 columns"])
	assert.NotZero(t, reasons[""])
}

func TestRowsPerExpert(t *testing.T) {
	for _, c := range []struct {
		config spec.Config
		want   int
	}{
		{spec.Config{NumExperts: 128, TopK: 8, TokensHint: 24576}, 1536},
		{spec.Config{NumExperts: 128, TopK: 8}, 1024},
		{spec.Config{NumExperts: 512, TopK: 1, TokensHint: 1}, 1},
	} {
		assert.Equal(t, c.want, registry.RowsPerExpert(c.config))
	}
}

// TestWholeAtoms checks that clusters share MN-major weights in whole atoms of 64
// columns, so tiles of 192 columns have no clusters.
func TestWholeAtoms(t *testing.T) {
	target := driver.H200()
	p := gemm.Tiling{TileN: 192, Stages: 3, GroupM: 8, ClusterM: 2}
	_, err := DX{Config: spec.Config{Hidden: 256, Intermediate: 64}, Tiling: p}.Build()
	require.ErrorContains(t, err, "128x192 s3 p8 c2")
	_, err = dh.DH{Config: spec.Config{Hidden: 256, Intermediate: 64}, Tiling: p}.Build()
	require.ErrorContains(t, err, "128x192 s3 p8 c2")
	_, err = dh.DH{Config: spec.Config{Hidden: 256, Intermediate: 64}, Tiling: gemm.Tiling{TileN: 192, Stages: 3, GroupM: 8, ClusterM: 1}}.Build()
	require.ErrorContains(t, err, "multiple of 128")
	require.ErrorContains(t, DXProduct.Check(p, target), "Tiles of dx.ClusterM")
	p.ClusterM = 1
	require.NoError(t, DXProduct.Check(p, target))
	p.TileN, p.ClusterM = 256, 2
	require.NoError(t, DXProduct.Check(p, target))
	require.ErrorContains(t, dh.Product.Check(p, target), "Tiles of dh.TileN")
	p.TileN = 128
	require.NoError(t, dh.Product.Check(p, target))
}
