package kernel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
)

// TestSharedKernels checks that without a gate, shared experts have no scores: no
// kernels for the scores' gradients, for the router's term in dX, or for a router's
// gradient.
func TestSharedKernels(t *testing.T) {
	c := spec.Config{Hidden: 256, Intermediate: 128, NumExperts: 8, TopK: 2, SharedExperts: 1}
	names := func(gate bool) (list []string) {
		c.SharedGate = gate
		shared, has := c.Shared()
		require.True(t, has)
		for _, k := range SharedKernels(shared) {
			list = append(list, k.Name())
		}
		return list
	}
	both := []string{"every-token", "up", "up-inference", "down", "decode-up", "decode-down", "dh", "plan-splits",
		"dw2", "dw2-f32", "dw2-add", "dw2-add-f32", "dw1", "dw1-f32", "dw1-add", "dw1-add-f32"}
	require.ElementsMatch(t, append([]string{"dx-given"}, both...), names(false))
	require.ElementsMatch(t, append([]string{"dx", "dscores", "drouter", "drouter-sum", "drouter-sum-f32", "drouter-sum-add", "drouter-sum-add-f32"}, both...), names(true))
}
