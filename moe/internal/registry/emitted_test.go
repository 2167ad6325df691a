package registry_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/kernel"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/registry"
)

// TestEmittedOnce checks that a kernel is emitted once for all layers in which its text is the
// same, and again for other layers.
func TestEmittedOnce(t *testing.T) {
	l := registry.Layer{Config: spec.Config{Hidden: 256, Intermediate: 192, NumExperts: 4, TopK: 2}}
	l.Tiles = kernel.Choose(l.Config, driver.H200())
	first, err := kernel.DownKernel.Build(l)
	require.NoError(t, err)
	for _, c := range []struct {
		name   string
		change func(l *registry.Layer)
		same   bool
	}{
		{"nothing", func(*registry.Layer) {}, true},
		{"hint", func(l *registry.Layer) { l.TokensHint = 7 }, true},
		{"tiling of another product", func(l *registry.Layer) { l.Tiles = l.Tiles.With(spec.ProductUp, kt.Shallow(128)) }, true},
		{"width", func(l *registry.Layer) { l.Hidden = 512 }, false},
		{"tiling", func(l *registry.Layer) { l.Tiles = l.Tiles.With(spec.ProductDown, kt.Shallow(128)) }, false},
		{"shared", func(l *registry.Layer) { l.IsShared = true }, false},
	} {
		other := l
		c.change(&other)
		b, err := kernel.DownKernel.Build(other)
		require.NoError(t, err)
		assert.Equal(t, c.same, b.Source("").Module == first.Source("").Module, c.name)
	}
}
