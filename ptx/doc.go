// Package ptx builds, prints, parses and verifies PTX kernels in Go.
//
// A [Kernel] builds one kernel. A value is a register or a constant; operations on constants are
// folded. Values have Go types ([U32], [U64], [F32], [BF16x2], [Pred], shared and global
// addresses), so a wrong width is a Go compile error.
//
// Two kinds of control flow must be kept apart. Go statements run while the kernel is built, so a
// Go "for" unrolls. [Kernel.For], [Kernel.If] and [Kernel.Loop] take closures, and become loops and
// branches that run on the GPU.
//
// Methods return no errors: [Kernel.Build] returns all of them, each with the Go line at fault. The
// text is deterministic: equal input gives equal bytes. It has the lowest .version and .target that
// the used instructions need. Each instruction remembers the Go lines that emitted it, in a table
// next to the text (see [Text]).
//
// The table in ptx/isa defines which instructions exist. Package ptx/emu runs the printed text
// without a GPU.
package ptx
