package exchange

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// Rows packs rows of d = Hidden 16-bit values: row i of To is row Index[i] of From. A thread copies
// two chunks of 16 bytes.
type Rows struct{ Hidden int }

const (
	rowsThreads = 128
	rowsChunks  = 2 * rowsThreads // of a CTA
)

// RowsArgs are the arguments of [Rows]. N is the number of rows to write.
type RowsArgs struct {
	// From has the rows to copy. Index [N] u32 has the row of From for each row of To.
	From, Index driver.DevicePtr
	// To [N, d] is an output.
	To driver.DevicePtr
	// Count is N.
	Count int
}

// Build emits the kernel. Loads and stores have the normal priority in the L2 cache. With a lower
// priority, lines that earlier kernels left in the cache would stay there, and the kernel would be slower.
func (r Rows) Build() (*jit.Kernel[RowsArgs], error) {
	k := jit.NewBuilder[RowsArgs]("moe_rows", rowsThreads, 16)
	rowBytes := r.Hidden * tile.ElementBytes
	ofRow := rowBytes / tile.CopyBytes
	k.CTAs(func(a *RowsArgs) int { return (a.Count*ofRow + rowsChunks - 1) / rowsChunks })
	from, index, to := k.Ptr(&k.Args.From), k.Ptr(&k.Args.Index), k.Ptr(&k.Args.To)
	count := k.U32(&k.Args.Count)
	var rows, of [2]ptx.U32
	var parts [2]ptx.U64
	for i := range rows {
		row, chunk := tile.ChunkOf(k.CtaidX(), k.TidX().AddI(i*rowsThreads), rowsChunks, ofRow)
		rows[i], parts[i] = row, chunk.MulWideI(tile.CopyBytes)
	}
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(rows[0].Lt(count), func() {
		for i, row := range rows { // a thread without a second chunk loads from the last row
			of[i] = ptx.LdGlobal[ptx.U32](index.Index(row.Min(count.SubI(1)), 4))
		}
		var values [2][]ptx.U32
		for i := range rows {
			values[i] = ptx.LdGlobalVec[ptx.U32](from.Index(of[i], rowBytes).Plus(parts[i]), 4)
		}
		for i, row := range rows {
			k.If(row.Lt(count), func() { ptx.StGlobal(to.Index(row, rowBytes).Plus(parts[i]), values[i]...) })
		}
	})
	return k.Build()
}

// RowsKernel is the kernel [Rows]. It packs tokens on their way to the experts, and the experts'
// rows on their way back.
var RowsKernel = &registry.Kernel[RowsArgs]{KernelName: "rows", Emit: func(l registry.Layer) (*jit.Kernel[RowsArgs], error) {
	return Rows{Hidden: l.Hidden}.Build()
}}
