package moe

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/moe/spec"
)

// TestCompileInParallel measures, on a GPU, whether the driver compiles
// several modules at once: the kernels of a layer one after another, then all
// at once. Set CUDA_CACHE_DISABLE=1, or the driver's own cache answers.
func TestCompileInParallel(t *testing.T) {
	if os.Getenv("SONICMOE_DEVICE") != "cuda" {
		t.Skip("SONICMOE_DEVICE is not cuda: the figure is of a GPU's driver")
	}
	ctx := context.Background()
	dev, err := open.Device(ctx, "cuda")
	require.NoError(t, err)
	defer dev.Close()
	row, _ := spec.FindRow("7B n=256")
	l, err := New(ctx, dev, row.Config, WithCache(nil))
	require.NoError(t, err)
	start := time.Now()
	for _, k := range l.kernels {
		one := time.Now()
		_, err := dev.Compile(ctx, k.Module.Print().PTX, driver.CompileOptions{})
		require.NoError(t, err)
		t.Logf("%-14s %v", k.Name, time.Since(one))
	}
	serial := time.Since(start)
	start = time.Now()
	var g errgroup.Group
	for _, k := range l.kernels {
		g.Go(func() error {
			_, err := dev.Compile(ctx, k.Module.Print().PTX, driver.CompileOptions{})
			return err
		})
	}
	require.NoError(t, g.Wait())
	t.Logf("one after another %v, at once %v", serial, time.Since(start))
}
