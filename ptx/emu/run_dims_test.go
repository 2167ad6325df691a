package emu

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/ptx"
)

// TestClustersOfThreeDimensions checks, for clusters and grids of three dimensions, that each CTA
// has the same rank, position in its cluster and cluster index as on the chip.
func TestClustersOfThreeDimensions(t *testing.T) {
	for name, c := range map[string]struct{ grid, cluster ptx.Dims }{
		"along x":    {ptx.Dims{4, 2, 1}, ptx.Dims{2, 1, 1}},
		"along y":    {ptx.Dims{2, 4, 1}, ptx.Dims{1, 2, 1}},
		"along z":    {ptx.Dims{1, 2, 4}, ptx.Dims{1, 1, 2}},
		"all of two": {ptx.Dims{4, 2, 2}, ptx.Dims{2, 2, 2}},
		"flat":       {ptx.Dims{6, 4, 3}, ptx.Dims{3, 2, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			text := `.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
.reqnctapercluster ` + c.cluster.String() + `
{
	.reg .b32 %r<8>;
	.reg .b64 %d<4>;
	ld.param.u64 %d0, [out];
	mov.u32 %r0, %ctaid.x;
	mov.u32 %r1, %ctaid.y;
	mov.u32 %r2, %ctaid.z;
	mov.u32 %r3, %nctaid.x;
	mov.u32 %r4, %nctaid.y;
	mad.lo.s32 %r5, %r2, %r4, %r1;
	mad.lo.s32 %r5, %r5, %r3, %r0;
	mul.wide.u32 %d1, %r5, 32;
	add.u64 %d0, %d0, %d1;
	mov.u32 %r0, %cluster_ctarank;
	mov.u32 %r1, %cluster_ctaid.x;
	mov.u32 %r2, %cluster_ctaid.y;
	mov.u32 %r3, %cluster_ctaid.z;
	st.global.v4.u32 [%d0], {%r0, %r1, %r2, %r3};
	mov.u32 %r0, %clusterid.x;
	mov.u32 %r1, %clusterid.y;
	mov.u32 %r2, %clusterid.z;
	mov.u32 %r3, %nclusterid.y;
	st.global.v4.u32 [%d0+16], {%r0, %r1, %r2, %r3};
}
`
			m, err := ptx.Parse([]byte(text))
			require.NoError(t, err)
			require.Contains(t, string(m.Print().PTX), ".reqnctapercluster "+c.cluster.String()+"\n")
			p := assemble(t, text, "k")
			n := c.grid.Count()
			out := p.u32s(make([]uint32, 8*n)...)
			p.params(out)
			p.launch.Grid, p.launch.Block = c.grid, [3]int{1}
			require.NoError(t, p.run())
			var want []uint32
			for i := range n {
				at := unravel(i, c.grid)
				var in, id [3]int
				for d := range at {
					id[d], in[d] = at[d]/c.cluster[d], at[d]%c.cluster[d]
				}
				rank := in[0] + c.cluster[0]*(in[1]+c.cluster[1]*in[2])
				for _, v := range []int{rank, in[0], in[1], in[2], id[0], id[1], id[2], c.grid[1] / c.cluster[1]} {
					want = append(want, uint32(v))
				}
			}
			assert.Equal(t, want, p.read(out, 8*n))
		})
	}
}

// TestExtentsAreRequired checks that a launch must match .reqntid and .reqnctapercluster in each
// dimension, not only in the product of the dimensions.
func TestExtentsAreRequired(t *testing.T) {
	p := assemble(t, ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n.reqntid 4, 8\n.reqnctapercluster 1, 2\n{\n}\n", "k")
	for name, c := range map[string]struct {
		grid, block, cluster [3]int
		why                  string
	}{
		"as required":        {[3]int{1, 2}, [3]int{4, 8}, [3]int{}, ""},
		"and said":           {[3]int{1, 2}, [3]int{4, 8, 1}, [3]int{1, 2}, ""},
		"block of one row":   {[3]int{1, 2}, [3]int{32}, [3]int{}, "a CTA is [32 1 1] threads, .reqntid wants [4 8 1]"},
		"cluster along x":    {[3]int{2, 2}, [3]int{4, 8}, [3]int{2}, "a cluster is [2 1 1] CTAs"},
		"grid of an odd row": {[3]int{2, 3}, [3]int{4, 8}, [3]int{}, "want a multiple of the cluster's [1 2 1]"},
	} {
		t.Run(name, func(t *testing.T) {
			p.launch.Grid, p.launch.Block, p.launch.Cluster = c.grid, c.block, c.cluster
			if err := p.run(); c.why == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.why)
			}
		})
	}
}
