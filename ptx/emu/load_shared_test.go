package emu

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSharedOfOtherKernels checks that a kernel has the shared variables that its own code and the
// functions that it calls refer to, and none of the module's others.
func TestSharedOfOtherKernels(t *testing.T) {
	m, err := Load([]byte(`.version 8.0
.target sm_90a
.address_size 64
.shared .align 128 .b8 large[40000];
.shared .align 8 .b8 small[16];
.shared .align 4 .b8 deep[4];
.extern .shared .align 16 .b8 dynamic[];
.func inner() { .reg .u32 %r0; ld.shared.u32 %r0, [deep]; ret; }
.visible .entry one() { .reg .u32 %r0; mov.u32 %r0, small; ret; }
.visible .entry two() { .reg .u32 %r0; ld.shared.u32 %r0, [large+8]; mov.u32 %r0, dynamic; ret; }
.visible .entry three() { call inner; ret; }
.visible .entry four() { ret; }
`))
	require.NoError(t, err)
	for name, want := range map[string]int{"one": 16, "two": 40000, "three": 4, "four": 0} {
		k, err := m.Kernel(name)
		require.NoError(t, err)
		assert.Equal(t, want, k.StaticSharedBytes(), name)
	}
}
