package emu

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMap checks that kernels and copies use mapped bytes themselves, below and above the
// addresses of allocations.
func TestMap(t *testing.T) {
	for _, at := range []uint64{0x1000, 0x7f00_0000_0000} {
		p := assemble(t, body(`ld.param.u64 %d0, [out]; ld.param.u32 %r0, [n]; ld.u32 %r1, [%d0]; add.u32 %r0, %r0, %r1; st.global.u32 [%d0+4], %r0;`), "k")
		p.launch.Block = [3]int{1}
		host := []byte{3, 0, 0, 0, 0, 0, 0, 0}
		first := p.u32s(5)
		require.NoError(t, p.mem.Map(at, host))
		second := p.u32s(6)
		p.params(at, 40)
		require.NoError(t, p.run())
		assert.Equal(t, []byte{3, 0, 0, 0, 43, 0, 0, 0}, host)
		require.NoError(t, p.mem.Copy(second, at+4, 4))
		assert.Equal(t, []uint32{43}, p.read(second, 1))
		assert.Equal(t, []uint32{5}, p.read(first, 1))
		assert.Equal(t, int64(8), p.mem.Used())
		itself, err := p.mem.Bytes(second, 4)
		require.NoError(t, err)
		itself[0] = 44
		assert.Equal(t, []uint32{44}, p.read(second, 1))
		_, err = p.mem.Bytes(second, 5)
		require.ErrorIs(t, err, ErrAddress)
		base, bytes, ok := p.mem.Range(at + 7)
		assert.Equal(t, []any{at, int64(8), true}, []any{base, bytes, ok})
		_, _, ok = p.mem.Range(at + 8)
		assert.False(t, ok)

		require.ErrorContains(t, p.mem.Map(at+4, host), "overlaps the allocation of 8 bytes")
		require.NoError(t, p.mem.Free(at))
		assert.Equal(t, int64(8), p.mem.Used())
		require.ErrorIs(t, p.mem.Read(host, at), ErrAddress)
		require.NoError(t, p.mem.Map(at+4, host))
	}
	m := NewMemory(1 << 20)
	require.NoError(t, m.Map(memoryBase+100, make([]byte, 1000)))
	at, err := m.Alloc(500) // must not overlap the mapped range
	require.NoError(t, err)
	assert.Equal(t, uint64(memoryBase+2*memoryGuard), (at+memoryGuard-1)/memoryGuard*memoryGuard)
	require.NoError(t, m.Write(at, make([]byte, 500)))
	for _, at := range []uint64{0, sharedWindow - 8, 1<<64 - 8} {
		require.ErrorContains(t, m.Map(at, make([]byte, 16)), "want addresses from 1")
	}
	require.ErrorContains(t, m.Map(4096, nil), "no bytes")
}

// TestVariable checks that the host reads and writes variables that kernels use.
func TestVariable(t *testing.T) {
	p := assemble(t, strings.Replace(body(`mov.u64 %d0, pair; ld.global.u32 %r0, [%d0]; ld.const.u32 %r1, [factor]; mul.lo.u32 %r0, %r0, %r1; st.global.u32 [%d0+4], %r0;`),
		".visible .entry", ".global .align 4 .b8 pair[8] = {5, 0, 0, 0};\n.const .align 4 .u32 factor = 2;\n.visible .entry", 1), "k")
	p.launch.Block = [3]int{1}
	p.params(p.u32s(0), 0)
	pair, bytes, err := p.mem.Variable(p.kernel.module, "pair")
	require.NoError(t, err)
	assert.Equal(t, int64(8), bytes)
	factor, bytes, err := p.mem.Variable(p.kernel.module, "factor")
	require.NoError(t, err)
	assert.Equal(t, int64(4), bytes)
	require.NoError(t, p.mem.Fill32(factor, 7, 1))
	require.NoError(t, p.run())
	assert.Equal(t, []uint32{5, 35}, p.read(pair, 2))
	_, _, err = p.mem.Variable(p.kernel.module, "smem")
	require.ErrorContains(t, err, `no variable "smem"`)
}
