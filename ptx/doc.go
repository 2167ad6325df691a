// Package ptx writes, prints, parses and verifies PTX kernels in Go.
//
// A [Kernel] builds one kernel. Values are typed by Go ([U32], [U64], [F32],
// [BF16x2], [Pred], shared and global addresses), so a wrong width does not
// compile; a value is a register or a constant, and constants are folded.
//
// There are two times. Go code runs when the kernel is built: a Go "for"
// unrolls. [Kernel.For], [Kernel.If] and [Kernel.Loop] take closures and
// become loops and branches of the GPU.
//
// Methods return no errors: [Kernel.Build] returns all of them, each with the Go
// line at fault. The text is deterministic: equal input gives equal bytes, with
// the lowest .version and .target that the used instructions need. Each
// instruction remembers the Go lines that emitted it, in a table next to the text
// (see [Text]).
//
// The table in ptx/isa defines which instructions exist. ptx/emu runs the printed
// text without a GPU.
package ptx
