package emu

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/ptx/emu/layout"
)

// storedTiles stores A (64 rows) and B (8 rows), of 64 k each, without swizzle, and multiplies them
// in four steps. A chunk of 16 bytes holds 8 k of a row. 8 rows form a group.
const storedTiles = `
	mov.u32 %r0, smem;
	mov.u32 %r1, %tid.x;
	mov.u32 %r3, 0;
	mad.lo.u32 %r2, %r1, 16, %r0;
a:
	st.shared.v4.b32 [%r2], {%r3, %r3, %r3, %r3}; // A
	add.u32 %r2, %r2, 2048;
	add.u32 %r3, %r3, 1;
	setp.lt.u32 %p0, %r3, 4;
	@%p0 bra a;
	mad.lo.u32 %r2, %r1, 8, %r0;
	st.shared.v2.b32 [%r2+8192], {%r3, %r3}; // B
	fence.proxy.async.shared::cta;
	bar.sync 0;
	mov.u64 %d0, DESCRIPTOR_A;
	mov.u64 %d1, DESCRIPTOR_B;
	mov.f32 %f0, 0f00000000; mov.f32 %f1, 0f00000000; mov.f32 %f2, 0f00000000; mov.f32 %f3, 0f00000000;
	mov.u32 %r3, 0;
	wgmma.fence.sync.aligned;
step:
	wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d0, %d1, 1, 1, 1, 0, 0;
	add.u64 %d0, %d0, STEP;
	add.u64 %d1, %d1, 16; // 16 chunks: k and k+8 of 8 rows
	add.u32 %r3, %r3, 1;
	setp.lt.u32 %p0, %r3, STEPS;
	@%p0 bra step;
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 0;`

// TestUnread checks that bytes of a tile that no product reads are a note at their store, if the
// descriptor or the distance of its steps is wrong. The correct kernel has no note.
func TestUnread(t *testing.T) {
	for name, c := range map[string]struct {
		lbo, sbo, start uint32 // descriptor of A: byte offsets, and distance of the start from the right one
		step, steps     string
		unread          []string
	}{
		"right":                  {128, 1024, 0, "16", "4", nil},
		"a step too few":         {128, 1024, 0, "16", "3", []string{"A", "B"}},
		"steps of half the size": {128, 1024, 0, "8", "4", []string{"A"}},
		"offsets swapped":        {1024, 128, 0, "16", "4", []string{"A"}},
		"a leading offset of 0":  {0, 1024, 0, "16", "4", []string{"A"}},
		"start off by a chunk":   {128, 1024, 16, "16", "4", []string{"A"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := layout.MatrixDescriptor{Start: sharedBase + c.start, LBO: c.lbo, SBO: c.sbo}
			b := layout.MatrixDescriptor{Start: sharedBase + 8192, LBO: 128, SBO: 1024}
			text := body(strings.NewReplacer("DESCRIPTOR_A", fmt.Sprintf("%#x", a.Encode()), "DESCRIPTOR_B", fmt.Sprintf("%#x", b.Encode()), "STEPS", c.steps, "STEP", c.step).Replace(storedTiles))
			p := assemble(t, text, "k")
			p.params(uint64(0), 0)
			p.launch.Block, p.launch.SharedBytes, p.launch.Races, p.launch.Unread = [3]int{128}, 16384, true, true
			var notes []*Fault
			p.launch.GoOn = func(f *Fault) bool { notes = append(notes, f); return true }
			require.NoError(t, p.run())
			require.Len(t, notes, len(c.unread), "%v", notes)
			for i, f := range notes {
				requireFault(t, f, IllegalDescriptor, text, "// "+c.unread[i])
				assert.Equal(t, Note, f.Severity)
				assert.Regexp(t, `bytes that this instruction stores in the CTA are never read, the first at shared memory .*wgmma \(line \d+`, f.Text)
			}
		})
	}
}
