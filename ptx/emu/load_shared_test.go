package emu

import (
	"testing"

	"sonicmoe/ptx"

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

// TestVectorRegisters checks that the elements of a vector register are registers, also if an inner
// scope declares the same name, and that the printed text declares them.
func TestVectorRegisters(t *testing.T) {
	p := assemble(t, body(`
	.reg .v2 .u32 pair, other;
	mov.u32 pair.x, 5;
	mov.u32 pair.y, 7;
	mov.u32 other.y, 100;
	{
		.reg .v4 .u32 pair;
		mov.u32 pair.x, 1000;
		mov.u32 pair.w, 2000;
		add.u32 other.y, other.y, pair.w;
	}
	add.u32 %r0, pair.x, pair.y;
	add.u32 %r0, %r0, other.y;
	ld.param.u64 %d0, [out];
	st.global.u32 [%d0], %r0;
	ret;
`), "k")
	out := p.u32s(0)
	p.params(out, 0)
	require.NoError(t, p.run())
	assert.Equal(t, uint32(5+7+100+2000), p.read(out, 1)[0])
	m, err := ptx.Parse([]byte(".version 8.0\n.target sm_90a\n.visible .entry k() { .reg .v2 .f32 p; mov.f32 p.x, p.y; ret; }"))
	require.NoError(t, err)
	again, err := ptx.Parse(m.Print().PTX)
	require.NoError(t, err)
	assert.Equal(t, string(m.Print().PTX), string(again.Print().PTX))
	_, err = ptx.Parse([]byte(".version 8.0\n.target sm_90a\n.visible .entry k() { .reg .v2 .f32 p; mov.f32 p.z, p.y; ret; }"))
	require.ErrorContains(t, err, "operand 1 (d) does not fit mov")
}
