package kernel_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/emit"
	"sonicmoe/moe/internal/kernel"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/tools"
	"sonicmoe/moe/tune"
)

// TestReluIsAProduct checks that tilings, choices, rooflines, layers, tuning and tools
// include the product.
func TestReluIsAProduct(t *testing.T) {
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	defer dev.Close()
	c, ctx := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, TokensHint: 24}, context.Background()
	p, err := tools.FindProduct("relu")
	require.NoError(t, err)
	require.Same(t, kernel.ReluProduct, p)
	require.Same(t, p, tools.ProductOf("relu"))
	chosen := tools.Choose(c, dev.Target())[spec.ProductRelu]
	require.Contains(t, p.Space(dev.Target()), chosen)
	require.Contains(t, emit.Key(dev.Target(), c, spec.ProductRelu).String(), "moe relu ")

	require.Contains(t, c.ForwardWork(24), spec.ProductRelu.Work(c, 24))
	least, err := moe.Estimate(c, moe.Workload{Tokens: 24})
	require.NoError(t, err)
	require.GreaterOrEqual(t, least.Forward, spec.H200.Time(spec.ProductRelu.Work(c, 24)))

	l, err := moe.New(ctx, dev, c, moe.WithoutBackward())
	require.NoError(t, err)
	require.Contains(t, l.Kernels(), "relu")
	require.Equal(t, chosen.String(), l.Tilings()["relu"])
	require.Equal(t, "cost model", l.ChosenBy()["relu"])
	_, err = moe.New(ctx, dev, c, moe.WithTilings(map[string]string{"relu": "128x256 s99 p8 c1"}))
	require.ErrorContains(t, err, "Tiles of relu.Stages is 99")
	_, err = moe.New(ctx, dev, c, moe.WithTilings(map[string]string{"rely": "128x256 s4 p8 c1"}))
	require.ErrorContains(t, err, "product is rely, must be one of [up down relu dh dw2 dw1 dx]")
	_, err = tune.Layer(ctx, dev, c, tune.Options{Products: []string{"relu"}, Most: 1, ForwardOnly: true})
	require.ErrorContains(t, err, `the pass has no kernel "relu"`, "no pass launches it")
}

// TestReluKernel checks the results with each tiling that the cost model or tuning may
// choose.
func TestReluKernel(t *testing.T) {
	const d, n = 192, 192
	p := kt.Ragged()
	x := reference.NewNormal(4, 1).Values(int64(p.Tokens * d))
	w := reference.NewNormal(5, 1/math.Sqrt(d)).Values(int64(len(p.Rows) * n * d))
	for _, tiling := range append(kernel.ReluProduct.Space(driver.H200()), kt.Shallow(128)) {
		k := kernel.Relu{Config: spec.Config{Hidden: d, Intermediate: n, NumExperts: len(p.Rows)}, Tiling: tiling}
		b := kt.New(t, kt.Early)
		z := b.Room(2 * len(p.Expert) * n)
		kt.Run(b, k, 4, kernel.ReluArgs{X: kt.Upload(b, x), Gather: kt.Upload(b, p.Gather), W: kt.Upload(b, w), Z: z, Rows: len(p.Expert), TileArgs: p.Tiles(b)})
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
