package moe_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/tools"
)

var benchConfig = moe.Config{Hidden: 1536, Intermediate: 256, NumExperts: 128, TopK: 8}

// BenchmarkSources measures the emission of all kernels of a layer.
func BenchmarkSources(b *testing.B) {
	for b.Loop() {
		_, err := tools.Sources(driver.H200(), benchConfig)
		require.NoError(b, err)
	}
}

// BenchmarkNew creates a layer from an empty and from a full cache.
func BenchmarkNew(b *testing.B) {
	dev := testDevice(b)
	b.Run("cold", func(b *testing.B) {
		for b.Loop() {
			jit.Forget(dev)
			_, err := moe.New(b.Context(), dev, benchConfig, moe.WithoutCache())
			require.NoError(b, err)
		}
	})
	b.Run("warm", func(b *testing.B) {
		c := cache.Open(cache.Options{Dir: b.TempDir()})
		_, err := moe.New(b.Context(), dev, benchConfig, moe.WithCache(c))
		require.NoError(b, err)
		for b.Loop() {
			jit.Forget(dev)
			_, err := moe.New(b.Context(), dev, benchConfig, moe.WithCache(c))
			require.NoError(b, err)
		}
	})
}

// BenchmarkCompile compiles a layer's kernels one after another and in parallel. Set
// CUDA_CACHE_DISABLE=1. Otherwise the driver's own cache has the machine code.
func BenchmarkCompile(b *testing.B) {
	dev, err := gpu.Of(testDevice(b))
	require.NoError(b, err)
	sources, err := tools.Sources(driver.H200(), benchConfig)
	require.NoError(b, err)
	for name, limit := range map[string]int{"one after another": 1, "at once": -1} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var g errgroup.Group
				g.SetLimit(limit)
				for _, s := range sources {
					g.Go(func() error {
						_, err := dev.Compile(b.Context(), s.Module.Print().PTX, gpu.CompileOptions{})
						return err
					})
				}
				require.NoError(b, g.Wait())
			}
		})
	}
}
