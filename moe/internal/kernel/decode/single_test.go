package decode_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/kernel/decode"
)

// TestProductsShareAnSM checks that, if experts are small, CTAs of both products of a single token
// fit on an SM together, and that they do not fit together if experts are large.
func TestProductsShareAnSM(t *testing.T) {
	target := driver.H200()
	for _, tt := range []struct {
		name     string
		c        spec.Config
		together bool
	}{
		{"Qwen3-30B-A3B", spec.Config{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8}, true},
		{"Qwen3-Next-80B", spec.Config{Hidden: 2048, Intermediate: 512, NumExperts: 512, TopK: 10}, true},
		{"gpt-oss-20b", spec.Config{Hidden: 2880, Intermediate: 2880, NumExperts: 32, TopK: 4}, false},
		{"Mixtral 8x7B", spec.Config{Hidden: 4096, Intermediate: 14336, NumExperts: 8, TopK: 2}, false},
	} {
		up, err := decode.SingleUp{Config: tt.c}.Build()
		require.NoError(t, err)
		down, err := decode.SingleDown{Config: tt.c}.Build()
		require.NoError(t, err)
		// Each CTA takes 1 KB of an SM's shared memory that it cannot use itself.
		const reserved = 1 << 10
		both := up.SharedBytes + down.SharedBytes + 2*reserved
		require.Equal(t, tt.together, both <= target.SharedBytesPerCTA+reserved, "%s: up %d bytes, down %d", tt.name, up.SharedBytes, down.SharedBytes)
	}
}

// TestUnitProductsShareAnSM checks that an SM has room for a CTA of each product of a single token with
// packed weights, but not for two CTAs of the up-projection.
func TestUnitProductsShareAnSM(t *testing.T) {
	target := driver.H200()
	for name, c := range map[string]spec.Config{
		"Qwen3-30B-A3B": {Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8, Weights: "mxfp4"},
		"gpt-oss-20b":   {Hidden: 2880, Intermediate: 2880, NumExperts: 32, TopK: 4, Weights: "mxfp4"},
	} {
		require.True(t, decode.HasSingleUnits(c), name)
		up, err := decode.SingleUnitsUp{Config: c}.Build()
		require.NoError(t, err)
		down, err := decode.SingleUnitsDown{Config: c}.Build()
		require.NoError(t, err)
		const reserved = 1 << 10 // see TestProductsShareAnSM
		require.LessOrEqual(t, up.SharedBytes+down.SharedBytes+2*reserved, target.SharedBytesPerSM, "%s: up %d bytes, down %d", name, up.SharedBytes, down.SharedBytes)
		require.Greater(t, 2*(up.SharedBytes+reserved), target.SharedBytesPerSM, "%s: up %d bytes", name, up.SharedBytes)
	}
}
