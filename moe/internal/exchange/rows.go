package exchange

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// Rows packs rows of d = Hidden 16-bit values: row i of To is row Index[i] of From. A thread copies
// 16 bytes.
type Rows struct{ Hidden int }

const rowsThreads = 256

// RowsArgs are the arguments of [Rows]. N is the number of rows to write.
type RowsArgs struct {
	// From has the rows to copy. Index [N] u32 has the row of From for each row of To.
	From, Index driver.DevicePtr
	// To [N, d] is an output.
	To driver.DevicePtr
	// Count is N.
	Count int
}

// Build emits the kernel.
func (r Rows) Build() (*jit.Kernel[RowsArgs], error) {
	k := jit.NewBuilder[RowsArgs]("moe_rows", rowsThreads, 4)
	rowBytes := r.Hidden * tile.ElementBytes
	ofRow := rowBytes / tile.CopyBytes
	k.CTAs(func(a *RowsArgs) int { return (a.Count*ofRow + rowsThreads - 1) / rowsThreads })
	from, index, to := k.Ptr(&k.Args.From), k.Ptr(&k.Args.Index), k.Ptr(&k.Args.To)
	count := k.U32(&k.Args.Count)
	row, chunk := chunkOf(k.CtaidX(), k.TidX(), ofRow)
	part := chunk.MulWideI(tile.CopyBytes)
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(row.Lt(count), func() {
		of := ptx.LdGlobal[ptx.U32](index.Index(row, 4))
		values := ptx.LdGlobalVec[ptx.U32](from.Index(of, rowBytes).Plus(part), 4, ".L1::no_allocate")
		ptx.StGlobalStreaming(to.Index(row, rowBytes).Plus(part), values...)
	})
	return k.Build()
}

// chunkOf returns the row that a thread copies a chunk of, and the index of the chunk in that row. The
// threads of the grid copy the chunks of all rows in order, and a row has ofRow chunks. The number of a chunk
// among all may exceed 32 bits, but the assembler divides 64-bit numbers with about 80 instructions. chunkOf
// therefore divides the number of the CTA first.
func chunkOf(cta, thread ptx.U32, ofRow int) (row, chunk ptx.U32) {
	ctas := ofRow / min(rowsThreads, ofRow&-ofRow) // together they copy whole rows
	inThese := cta.RemI(ctas).MulI(rowsThreads).Add(thread)
	more := inThese.DivI(ofRow)
	return cta.DivI(ctas).MulI(ctas * rowsThreads / ofRow).Add(more), inThese.Sub(more.MulI(ofRow))
}

// RowsKernel is the kernel [Rows]. It packs tokens on their way to the experts, and the experts'
// rows on their way back.
var RowsKernel = &registry.Kernel[RowsArgs]{KernelName: "rows", Emit: func(l registry.Layer) (*jit.Kernel[RowsArgs], error) {
	return Rows{Hidden: l.Hidden}.Build()
}}
