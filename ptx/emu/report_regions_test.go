package emu

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/ptx"
)

// TestRegions checks that findings give the same names to addresses as Regions does.
func TestRegions(t *testing.T) {
	p := assemble(t, body("	mov.u32 %r0, smem;\n	ret;\n"), "k")
	list := p.kernel.Regions(512)
	require.NotEmpty(t, list)
	for _, r := range list {
		assert.Contains(t, p.kernel.symbolic(r.At), "smem")
	}
	named := build(t, func() *ptx.Kernel {
		k := ptx.NewKernel("k")
		k.SharedBase()
		return k
	}())
	named.kernel.entry.Names = []ptx.Name{{Kind: ptx.SharedRegion, At: 64, Count: 3, Bytes: 8, Text: "ab.full"}}
	var names []string
	for _, r := range named.kernel.Regions(80) {
		names = append(names, r.Name)
		assert.Contains(t, named.kernel.symbolic(r.At), r.Name)
		assert.Positive(t, r.Bytes)
	}
	assert.Equal(t, []string{"full[0] of ring ab", "full[1] of ring ab"}, names, "the third piece is outside the launch's memory")
}
