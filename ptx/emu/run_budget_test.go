package emu

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLaunchesBeyondAllBounds checks that launches larger than the limits are refused before memory
// is allocated, even if the product of their dimensions overflows 64 bits.
func TestLaunchesBeyondAllBounds(t *testing.T) {
	p := assemble(t, strings.Replace(body(""), ".maxntid 512\n", "", 1), "k")
	p.params(uint64(0), 0)
	good := p.launch
	for name, c := range map[string]struct {
		spoil func(l *Launch)
		says  string
	}{
		"grid 2^64":         {func(l *Launch) { l.Grid = [3]int{1 << 21, 1 << 21, 1 << 22} }, "grid"},
		"grid beyond y":     {func(l *Launch) { l.Grid = [3]int{1, 1 << 16, 1} }, "grid"},
		"block 2^64":        {func(l *Launch) { l.Block = [3]int{1 << 32, 1 << 32, 1} }, "blocks"},
		"block 0":           {func(l *Launch) { l.Block = [3]int{1 << 62, 4, 1} }, "blocks"},
		"negative twice":    {func(l *Launch) { l.Block = [3]int{-1, -1, 1} }, "blocks"},
		"shared 2^63-1":     {func(l *Launch) { l.SharedBytes = math.MaxInt64 }, "shared memory"},
		"shared -1":         {func(l *Launch) { l.SharedBytes = -1 }, "shared memory"},
		"cluster -1":        {func(l *Launch) { l.Cluster[1] = -1 }, "cluster"},
		"the host's memory": {func(l *Launch) { l.HostBytes = 1000 }, "of host memory"},
		"registers of 16 CTAs": {func(l *Launch) {
			wide := assemble(t, ".version 8.0\n.target sm_90a\n.entry k() {\n.reg .b64 %r<65536>;\nret;\n}\n", "k")
			p.kernel, l.Params, l.Block, l.Grid, l.Cluster = wide.kernel, nil, [3]int{1024}, [3]int{16}, [3]int{16}
		}, "of host memory"},
	} {
		t.Run(name, func(t *testing.T) {
			kernel := p.kernel
			defer func() { p.kernel = kernel }()
			p.launch = good
			c.spoil(&p.launch)
			assert.ErrorContains(t, p.run(), c.says)
		})
	}
	for _, n := range []int{1, 2, 64} {
		assert.ErrorIs(t, p.mem.Read(make([]byte, n), 8), ErrAddress, "%d bytes", n)
		assert.ErrorIs(t, p.mem.Write(8, make([]byte, n)), ErrAddress, "%d bytes", n)
	}
	for _, count := range []int64{1 << 61, 1 << 62, 1<<62 + 1, math.MaxInt64, -1} {
		at, err := p.mem.Alloc(64)
		require.NoError(t, err)
		assert.Error(t, p.mem.Fill32(at, 1, count), "%d words", count)
	}
}

// TestClustersByTurns checks that all clusters run if there is memory for only one at a time.
func TestClustersByTurns(t *testing.T) {
	p := assemble(t, body(`	ld.param.u64 %d0, [out];
	mov.u32 %r0, %ctaid.x;
	mul.wide.u32 %d1, %r0, 4;
	add.u64 %d0, %d0, %d1;
	add.u32 %r0, %r0, 1;
	st.global.u32 [%d0], %r0;`), "k")
	const ctas = 40
	out := p.u32s(make([]uint32, ctas)...)
	p.params(out, 0)
	p.launch.Grid, p.launch.Block, p.launch.Parallel = [3]int{ctas}, [3]int{1}, 8
	p.launch.HostBytes = 1 << 15
	g, err := p.kernel.newGrid(p.mem, p.launch)
	require.NoError(t, err)
	begun, free := int64(0), []*cluster(nil)
	for g.begin(&free) != nil {
		begun++
	}
	require.Positive(t, begun)
	require.LessOrEqual(t, begun*g.clusterBytes(), p.launch.HostBytes)
	require.NoError(t, p.run())
	for i, v := range p.read(out, ctas) {
		require.EqualValues(t, i+1, v)
	}
}

// TestReadsOfKernelsTooLargeToProve checks a kernel with too many registers and branches for the
// proof that registers are written before they are read. Reads of unwritten registers are still
// found, and other reads pass.
func TestReadsOfKernelsTooLargeToProve(t *testing.T) {
	var b strings.Builder
	b.WriteString(".reg .b32 %z<60000>;\n mov.u32 %z0, 5;\n")
	for i := range 5000 {
		fmt.Fprintf(&b, "L%d: bra L%d;\n", i, i+1)
	}
	b.WriteString("L5000: add.u32 %z1, %z0, 1;\n")
	begin := time.Now()
	for _, bad := range []bool{false, true} {
		text := b.String()
		if bad {
			text += "add.u32 %z2, %z3, 1; // here\n"
		}
		text = body(text)
		p := assemble(t, text, "k")
		p.params(uint64(0), 0)
		if bad {
			requireFault(t, p.run(), UninitializedRegister, text, "// here")
		} else {
			require.NoError(t, p.run())
		}
	}
	assert.Less(t, time.Since(begin), 20*time.Second)
}

// TestProofsAreBounded checks that a proof that would take too much memory is not started, and that
// one that takes too long is abandoned. Nothing is proved then.
func TestProofsAreBounded(t *testing.T) {
	chain := func(b *strings.Builder, n int) {
		for i := range n {
			fmt.Fprintf(b, "L%d: bra L%d;\n", i, i+1)
		}
		fmt.Fprintf(b, "L%d:\n", n)
	}
	var small, wide, long strings.Builder
	small.WriteString(".reg .b32 %z<7600>;\n")
	chain(&small, 100)
	wide.WriteString(".reg .b32 %z<60000>;\n")
	chain(&wide, 5000)
	// Every jump to L0 proves one register fewer than the jump before, so each jump makes the
	// analysis repeat all later blocks.
	long.WriteString(".reg .b32 %z<7600>;\n")
	const jumps = 300
	for i := range jumps {
		fmt.Fprintf(&long, "mov.u32 %%z%d, 1;\n@%%p0 bra P%d;\n", i, i)
	}
	long.WriteString("bra L0;\n")
	for i := range jumps {
		fmt.Fprintf(&long, "P%d: bra L0;\n", i)
	}
	chain(&long, 10000)
	for name, c := range map[string]struct {
		text   string
		proved bool
	}{"small": {small.String(), true}, "wide": {wide.String(), false}, "long": {long.String(), false}} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name == "long" {
				t.Skip("too long for -short")
			}
			a := assemble(t, body(c.text), "k").kernel.definedness()
			a.solve()
			require.Equal(t, c.proved, slices.ContainsFunc(a.in, func(set []uint64) bool { return set != nil }))
		})
	}
}

// TestContextEndsALoopThatStores checks that a kernel that stores for ever ends with its context.
func TestContextEndsALoopThatStores(t *testing.T) {
	p := assemble(t, body(`	ld.param.u64 %d0, [out];
again:
	st.global.u32 [%d0], 1;
	bra again;`), "k")
	p.params(p.u32s(0), 0)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	p.launch.Grid = [3]int{1}
	begin := time.Now()
	require.ErrorIs(t, p.kernel.Launch(ctx, p.mem, p.launch), context.DeadlineExceeded)
	assert.Less(t, time.Since(begin), 10*time.Second)
}
