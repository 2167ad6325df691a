package emu

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/ptx/emu/layout"
)

// counted runs the instructions in a kernel of one warp, which has the lane in %r1. It returns the
// counts of the line that ends with "// here".
func counted(t *testing.T, instructions string) Counts {
	t.Helper()
	fill := ""
	for i := range 32 {
		fill += fmt.Sprintf("\tmov.b32 %%f%d, 0;\n", i)
	}
	text := body(`	mov.u32 %r0, smem;
	mov.u32 %r1, %tid.x;
	ld.param.u64 %d0, [out];
	cvt.u64.u32 %d1, %r1;
	mov.u64 %d2, 0;
	mov.u32 %r3, 0; // all 16 kB are written first
	shl.b32 %r4, %r1, 4;
	add.u32 %r4, %r4, %r0;
` + fill + `$fill:
	st.shared.v4.b32 [%r4], {%f0, %f1, %f2, %f3};
	add.u32 %r4, %r4, 512;
	add.u32 %r3, %r3, 1;
	setp.lt.u32 %p0, %r3, 32;
	@%p0 bra $fill;
	bar.warp.sync 0xffffffff;
` + instructions)
	p := assemble(t, text, "k")
	p.params(p.u32s(make([]uint32, 4096)...), 0)
	p.launch.SharedBytes = 16 << 10
	p.launch.Report = &Report{}
	require.NoError(t, p.run(), text)
	here := 1 + strings.Count(text[:strings.Index(text, "// here")], "\n")
	for _, c := range p.launch.Report.Instructions {
		if c.Line == here {
			return c
		}
	}
	t.Fatal("the line did not run")
	return Counts{}
}

// TestBankConflicts checks that the number of wavefronts follows the rules of banks.
func TestBankConflicts(t *testing.T) {
	for name, c := range map[string]struct {
		address   string // computes the address %r2 from the lane in %r1
		access    string
		is, least uint64
	}{
		"one word each":                   {"shl.b32 %r2, %r1, 2;", "ld.shared.b32 %f0, [%r2];", 1, 1},
		"stride of 2 words":               {"shl.b32 %r2, %r1, 3;", "ld.shared.b32 %f0, [%r2];", 2, 1},
		"stride of 3 words":               {"mul.lo.u32 %r2, %r1, 12;", "ld.shared.b32 %f0, [%r2];", 1, 1},
		"stride of 32 words":              {"shl.b32 %r2, %r1, 7;", "ld.shared.b32 %f0, [%r2];", 32, 1},
		"stride of 33 words":              {"mul.lo.u32 %r2, %r1, 132;", "ld.shared.b32 %f0, [%r2];", 1, 1},
		"stride of 32 words, stored":      {"shl.b32 %r2, %r1, 7;", "st.shared.b32 [%r2], %f0;", 32, 1},
		"one word for all":                {"mov.u32 %r2, 0;", "ld.shared.b32 %f0, [%r2];", 1, 1},
		"a byte each":                     {"mov.u32 %r2, %r1;", "ld.shared.u8 %h0, [%r2];", 1, 1},
		"half a warp at stride 32":        {"shl.b32 %r2, %r1, 7; setp.lt.u32 %p1, %r1, 16;", "@%p1 ld.shared.b32 %f0, [%r2];", 16, 1},
		"64 bits each":                    {"shl.b32 %r2, %r1, 3;", "ld.shared.v2.b32 {%f0, %f1}, [%r2];", 2, 2},
		"128 bits each":                   {"shl.b32 %r2, %r1, 4;", "ld.shared.v4.b32 {%f0, %f1, %f2, %f3}, [%r2];", 4, 4},
		"128 bits each, stored":           {"shl.b32 %r2, %r1, 4;", "st.shared.v4.b32 [%r2], {%f0, %f1, %f2, %f3};", 4, 4},
		"128 bits each at 128 bytes":      {"shl.b32 %r2, %r1, 7;", "ld.shared.v4.b32 {%f0, %f1, %f2, %f3}, [%r2];", 32, 4},
		"atomics on words of their own":   {"shl.b32 %r2, %r1, 2;", "red.shared.add.u32 [%r2], 1;", 1, 1},
		"atomics on one word":             {"mov.u32 %r2, 0;", "red.shared.add.u32 [%r2], 1;", 32, 1},
		"a matrix of rows after another":  {"shl.b32 %r2, %r1, 4;", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%f0}, [%r2];", 1, 1},
		"rows at 128 bytes":               {"shl.b32 %r2, %r1, 7;", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%f0}, [%r2];", 8, 1},
		"four matrices at 128 bytes":      {"shl.b32 %r2, %r1, 7;", "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%f0, %f1, %f2, %f3}, [%r2];", 32, 4},
		"four, 128-byte swizzle":          {"shl.b32 %r2, %r1, 7; and.b32 %r5, %r1, 7; shl.b32 %r5, %r5, 4; xor.b32 %r2, %r2, %r5;", "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%f0, %f1, %f2, %f3}, [%r2];", 4, 4},
		"four, 64-byte swizzle, in 64":    {"shl.b32 %r2, %r1, 6; shr.u32 %r5, %r1, 1; and.b32 %r5, %r5, 3; shl.b32 %r5, %r5, 4; xor.b32 %r2, %r2, %r5;", "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%f0, %f1, %f2, %f3}, [%r2];", 4, 4},
		"four stored, 128-byte swizzle":   {"shl.b32 %r2, %r1, 7; and.b32 %r5, %r1, 7; shl.b32 %r5, %r5, 4; xor.b32 %r2, %r2, %r5;", "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r2], {%f0, %f1, %f2, %f3};", 4, 4},
		"four stored at 144 bytes, clean": {"mul.lo.u32 %r2, %r1, 144;", "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r2], {%f0, %f1, %f2, %f3};", 4, 4},
	} {
		t.Run(name, func(t *testing.T) {
			got := counted(t, c.address+"\n\tadd.u32 %r2, %r2, %r0;\n\t"+c.access+" // here")
			assert.Equal(t, [2]uint64{c.is, c.least}, [2]uint64{got.Wavefronts, got.LeastWavefronts})
			assert.EqualValues(t, 1, got.Warps)
		})
	}
}

// TestSectors checks that a report counts the sectors that a warp touches, and the least number
// that could hold the same bytes.
func TestSectors(t *testing.T) {
	for name, c := range map[string]struct {
		address   string // computes the address %d2 from the lane in %d1
		access    string
		is, least uint64
		read      uint64
		written   uint64
	}{
		"one word each":             {"shl.b64 %d2, %d1, 2;", "ld.global.b32 %f0, [%d2];", 4, 4, 128, 0},
		"one word each, not at 128": {"shl.b64 %d2, %d1, 2; add.u64 %d2, %d2, 16;", "ld.global.b32 %f0, [%d2];", 5, 4, 128, 0},
		"a sector each":             {"shl.b64 %d2, %d1, 5;", "ld.global.b32 %f0, [%d2];", 32, 4, 128, 0},
		"one word for all":          {"mov.u64 %d2, 0;", "ld.global.b32 %f0, [%d2];", 1, 1, 128, 0},
		"128 bits each, stored":     {"shl.b64 %d2, %d1, 4;", "st.global.v4.b32 [%d2], {%f0, %f1, %f2, %f3};", 16, 16, 0, 512},
		"atomics on one word":       {"mov.u64 %d2, 0;", "red.global.add.u32 [%d2], 1;", 1, 1, 128, 128},
		"generic":                   {"shl.b64 %d2, %d1, 3;", "ld.b32 %f0, [%d2];", 8, 4, 128, 0},
		"cp.async":                  {"shl.b64 %d2, %d1, 5; shl.b32 %r2, %r1, 4; add.u32 %r2, %r2, %r0;", "cp.async.cg.shared.global [%r2], [%d2], 16;", 32, 16, 512, 0},
		"bulk":                      {"setp.eq.u32 %p1, %r1, 0; add.u64 %d2, %d2, 16; mov.u32 %r5, 64; bar.warp.sync 0xffffffff; fence.proxy.async.shared::cta;", "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r0], %r5;", 3, 2, 0, 64},
	} {
		t.Run(name, func(t *testing.T) {
			end := "\n\tcp.async.wait_all;\n\tcp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;\n"
			at := strings.LastIndex(c.address, ";") + 1
			got := counted(t, c.address[:at]+"\n\tadd.u64 %d2, %d2, %d0;\n\t"+c.access+" // here"+end)
			assert.Equal(t, [2]uint64{c.is, c.least}, [2]uint64{got.Sectors, got.LeastSectors})
			assert.Equal(t, [2]uint64{c.read, c.written}, [2]uint64{got.GlobalRead, got.GlobalWritten})
		})
	}
}

// sum adds up the counts of the instructions with the given mover.
func (r *Report) sum(by Mover) (all Counts) {
	for i := range r.Instructions {
		if r.Instructions[i].By == by {
			all.add(&r.Instructions[i])
		}
	}
	return all
}

// TestReportOfPipeline checks the report of a TMA and wgmma pipeline: the bytes at each level, and
// what each warp waits for.
func TestReportOfPipeline(t *testing.T) {
	const steps, ctas = 7, 2
	g := gemm{n: 64, stages: 3}
	p := g.build(t)
	out, want, exact := g.arguments(p, steps)
	for _, timing := range []Timing{Early, Late, Random} {
		r := &Report{Instructions: []Counts{{Line: 1}}, TouchedRead: 5} // filled by an earlier launch; the launch must clear it
		p.launch.Report, p.launch.Grid[0], p.launch.Timing = r, ctas, timing
		require.NoError(t, p.run())
		g.check(t, p, out, want, exact)

		const tiles = steps * (wgmmaRows + 64) * gemmDepth * 2
		tma, products, threads := r.sum(ByTMA), r.sum(ByWgmma), r.sum(ByThreads)
		assert.EqualValues(t, ctas*tiles, tma.SharedWritten)
		assert.EqualValues(t, ctas*tiles, tma.GlobalRead)
		assert.EqualValues(t, ctas*tiles/sectorBytes, tma.Sectors)
		assert.Equal(t, tma.LeastSectors, tma.Sectors)
		assert.EqualValues(t, ctas*steps*2, tma.Warps, "two loads a step, and what waits is counted once")
		assert.EqualValues(t, tma.Warps, tma.Lanes)
		assert.EqualValues(t, ctas*tiles, products.SharedRead)
		assert.EqualValues(t, ctas*steps*4*gemmDepth/16, products.Warps)
		assert.EqualValues(t, ctas*wgmmaRows*64*4, threads.GlobalWritten)
		assert.EqualValues(t, tiles/sectorBytes, r.TouchedRead, "both CTAs read the same")
		assert.EqualValues(t, wgmmaRows*64*4/sectorBytes, r.TouchedWritten)

		require.Len(t, r.Timeline.Warps, 8)
		for id, w := range r.Timeline.Warps {
			at, waits := 0, map[string]int{}
			for _, s := range w.Spans {
				require.Equal(t, at, s.From, "warp %d", id)
				require.Less(t, s.From, s.To, "warp %d", id)
				at = s.To
				waits[strings.Fields(s.Waits + " -")[0]]++
				assert.Contains(t, s.Where, ".go:")
			}
			require.LessOrEqual(t, at, r.Timeline.Turns)
			if id == 0 && timing != Random || id > 3 && timing == Late { // early, stages are full before the math warps have cleared their accumulators
				assert.Positive(t, waits["mbarrier"], "warp %d at %v", id, timing)
			}
			if timing == Early && id > 0 { // every warp except the loading warp waits at the named barrier
				assert.Positive(t, waits["named"], "warp %d", id)
			}
		}
		var text strings.Builder
		require.NoError(t, r.Write(&text, Parts...))
		assert.Regexp(t, fmt.Sprintf(`\n  shared memory, by wgmma +%d +0\n`, ctas*tiles), text.String())
		assert.Contains(t, text.String(), "wgmma.mma_async")
		assert.Regexp(t, `\n  [a-z]  mbarrier smem \+ \d+ \(0x[0-9a-f]+\): \d+ \(line \d+ = emu/run_async_test.go:47`, text.String())
		for _, line := range strings.Split(text.String(), "\n") {
			if strings.HasPrefix(line, "  warp ") {
				assert.LessOrEqual(t, len(line), columns+20)
			}
		}
	}
	assert.ErrorContains(t, p.launch.Report.Write(&strings.Builder{}, "sector"), `report part is "sector", want one of [bytes conflicts`)
}

// TestReportOfMulticast checks that a multicast counts as one read of global memory and as a write
// to each CTA's shared memory.
func TestReportOfMulticast(t *testing.T) {
	p := build(t, multicastKernel(3, true))
	const words = 64
	p.params(layout.TensorMap{Elem: layout.ElemU32, Rank: 2, Address: p.u32s(make([]uint32, words)...), Dims: [5]uint64{4, 16}, Strides: [4]uint64{16}, Box: [5]uint32{4, 8}},
		p.u32s(make([]uint32, 2*66)...))
	p.launch.Grid, p.launch.Cluster, p.launch.SharedBytes, p.launch.Report = [3]int{2}, [3]int{2}, 512, &Report{}
	require.NoError(t, p.run())
	tma := p.launch.Report.sum(ByTMA)
	const note = 16 // bytes that CTA 0 copies to the shared memory of both CTAs
	assert.EqualValues(t, 4*words, tma.GlobalRead)
	assert.EqualValues(t, 4*words+note, tma.SharedWritten)
	assert.EqualValues(t, 4*words+note, tma.ClusterWritten)
	assert.EqualValues(t, 2*note, tma.SharedRead)
}

// TestTimeline checks that a timeline shows what each warp waits for, and that the timeline's
// picture shows in which turns each warp waits.
func TestTimeline(t *testing.T) {
	p := assemble(t, body(`
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, 0;
	setp.ge.u32 %p0, %r0, 32;
	@%p0 bra $meet;
$count:
	add.u32 %r1, %r1, 1;
	setp.lt.u32 %p1, %r1, 320;
	@%p1 bra $count;
$meet:
	bar.sync 3;
	@%p0 ret;
	bar.warp.sync 0xffffffff;
`), "k")
	p.params(p.u32s(0), 0)
	p.launch.Block, p.launch.Report = [3]int{64}, &Report{}
	require.NoError(t, p.run())
	line := p.launch.Report.Timeline
	first, second := line.Warps[0].Spans, line.Warps[1].Spans
	require.Len(t, first, 1)
	assert.InDelta(t, 3*320, first[0].To, 10)
	require.Len(t, second, 3)
	assert.Equal(t, []string{"", "named barrier 3", ""}, []string{second[0].Waits, second[1].Waits, second[2].Waits})
	assert.InDelta(t, 3*320, second[1].To-second[1].From, 10)
	var text strings.Builder
	require.NoError(t, p.launch.Report.Write(&text, "timeline"))
	assert.Contains(t, text.String(), "  warp 0  |"+strings.Repeat("#", 88))
	assert.Contains(t, text.String(), "  warp 1  |"+strings.Repeat("a", 86))
	assert.Contains(t, text.String(), "  a  named barrier 3: ")
}
