package emu

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	sparseWgmma = "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d0, %d1, %r7, 0, 0, 1, 1, 0, 0;"
	sparseFrame = wgmmaFrame + "mov.u32 %r7, 0x44444444;\n\t"
	// sparseWarp sets the registers of a sparse mma.sync. Lane 5 has other metadata than the rest.
	sparseWarp = `
	mov.u32 %r0, 0;
	mov.u32 %r7, 0x44444444;
	mov.u32 %r8, %laneid;
	setp.eq.u32 %p0, %r8, 5;
	`
	sparseOrdered = "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f16.f16.f16.f16 {%r2, %r3}, {%r0, %r0, %r0, %r0}, {%r0, %r0, %r0, %r0}, {%r0, %r0}, %r7, "
	sparseTF32    = "mma.sp.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0, %f1, %f2, %f3}, {%r0, %r0}, {%r0, %r0}, {%r0, %r0, %r0, %r0}, %r7, "
)

// sparseFaults lists kernels with a mistake in a sparse product.
var sparseFaults = []planted{
	{name: "metadata that pick an element twice", kind: IllegalInstruction, code: sparseWarp + `
	@%p0 mov.u32 %r7, 0x44444454;
	` + sparseOrdered + "0; // here", says: []string{"metadata 0x44444454 of lane 5 pick units 1 and 1 of k 20 to 23 of row 1 (bits 4 to 7), want two different units"}},
	{name: "ordered metadata out of order", kind: IllegalInstruction, code: sparseWarp + `
	@%p0 mov.u32 %r7, 0x44144444;
	` + sparseOrdered + "0; // here", says: []string{"of k 20 to 23 of row 9 (bits 20 to 23), want the lower unit in the lower bits"}},
	{name: "metadata that pick half a TF32 number", kind: IllegalInstruction, code: sparseWarp + `
	@%p0 mov.u32 %r7, 0x4444444c;
	` + sparseTF32 + "1; // here", says: []string{"pick units 0 and 3 of k 0 to 1 of row 1", "0 and 1 for the first TF32 number, 2 and 3 for the second"}},
	{name: "metadata that some lanes lack", kind: UninitializedRegister, code: sparseWarp + `
	@%p0 mov.u32 %r9, 0x44444444;
	` + strings.Replace(sparseOrdered, "%r7", "%r9", 1) + "0; // here", says: []string{"lanes 0-1,4,8-9,12-13,16-17,20-21,24-25,28-29", "%r9"}},
	{name: "metadata of a sparse wgmma", kind: IllegalInstruction, threads: 128, shared: 16384, code: sparseFrame + fenceMMA + `
	mov.u32 %r7, 0x44444440;
	` + sparseWgmma + " // here", says: []string{"pick units 0 and 0 of k 0 to 3 of row 0"}},
	{name: "accumulator of a sparse wgmma read in flight", kind: AccumulatorInFlight, threads: 128, shared: 16384, code: sparseFrame + fenceMMA + sparseWgmma + `
	wgmma.commit_group.sync.aligned;
	add.rn.f32 %f8, %f2, %f2; // here`, says: []string{"%f2", "wait_group"}},
	{name: "sparse wgmma without wgmma.fence", kind: MissingFence, threads: 128, shared: 16384, code: sparseFrame + sparseWgmma + " // here"},
	{name: "B of a sparse wgmma past its row", kind: IllegalDescriptor, threads: 128, shared: 16384, code: sparseFrame + fenceMMA + `
	add.u64 %d1, %d1, 6;
	` + sparseWgmma + " // here", says: []string{"B: ", "32 k from start", "run past its 128 bytes"}},
	{name: "second half of a sparse wgmma's B without a proxy fence", kind: ProxyRace, threads: 128, shared: 16384, code: sparseFrame + `
	mov.u32 %r3, %tid.x;
	setp.eq.u32 %p1, %r3, 0;
	@%p1 st.shared.u32 [%r1+8240], 0; // the dense product reads 32 bytes of each row
	bar.sync 0;
	` + fenceMMA + sparseWgmma + ` // here
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 0;`},
}

// TestSelectorPicksLanes checks that only the lanes that the selector picks need metadata.
func TestSelectorPicksLanes(t *testing.T) {
	p := assemble(t, body(sparseWarp+`
	@%p0 mov.u32 %r7, 0;
	`+sparseOrdered+`1;
	`+sparseTF32+`3;
	and.b32 %r8, %r8, 2;
	setp.ne.u32 %p0, %r8, 0;
	@%p0 mov.u32 %r9, 0x44444444;
	`+strings.Replace(sparseOrdered, "%r7", "%r9", 1)+"1;"), "k")
	p.params(uint64(0), 0)
	require.NoError(t, p.run())
}
