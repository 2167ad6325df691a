// Package emu runs PTX kernels on the CPU and gives a Hopper GPU's own bits
// where those are specified or measured.
//
// [Load] parses, verifies and decodes PTX text; [Kernel.Launch] runs a grid on a
// [Memory]. Threads run in warps whose lanes may part and meet again, clusters
// of CTAs in parallel goroutines, each cluster's warps by turns in one: a launch
// gives the same result each time. cp.async, TMA and wgmma complete as
// [Timing] says, at the earliest, the latest or a random legal moment, so that
// a missing wait shows as a wrong result or a fault.
//
// A kernel that breaks a rule ends with a [Fault] that names the rule, the line
// of the PTX, and what was wrong in words: deadlocks (who waits for which
// barrier and phase), accesses out of bounds or misaligned, reads of registers
// and shared memory that nobody wrote, registers of products touched in flight, missing
// fences, descriptors, barriers and divergence against the manual.
//
// The emulator is a strict reader of the manual where hardware is lenient: a
// CTA must wait for the bulk copies that use its shared memory before it ends,
// and a barrier that an exited warp misses is a deadlock. With Launch.Races it
// also finds accesses to shared and global memory that nothing orders, by
// whatever order they happen to run: loads, stores, atomics and their scopes,
// cp.async, TMA, what wgmma reads, the use of mbarriers, and ld.global.nc of what
// the kernel wrote. Lanes of one warp count as ordered by barriers and
// bar.warp.sync only, not by shuffles or by running in step, and one that signals
// for its warp tells of what it knows of the others, as what one lane was told the
// others know behind such a barrier only (racelanes.go, racetold.go). A
// matrix descriptor must fit the box that TMA wrote where it points (racelayout.go).
//
// [Kernel.Check] runs a launch early, late and in random orders; [Kernel.Explore]
// runs a small one in one order after the other until there is no other that a warp
// could tell from these, and says how much of them it has run (schedule.go, explore.go).
//
// How much is named: of the instructions of our kernels that order others, each
// dropped or weakened in turn while a layer runs forward, backward and on few tokens,
// 780 of 968 were reached in one run, 736 of these named, and TestDroppedLines of
// moe/internal/sweeps says of the others what else orders them.
//
// With Launch.Report it counts what a launch does: bytes at each level, bank
// conflicts, sectors of global memory, instructions by role, and in which turn
// which warp of a CTA waits for what. Counts, not times: counter.go says what follows
// from documented rules and what is assumed.
//
// Launches of one [Stream] race too, where a programmatic one touches what launches
// before it do that may still run: what it has not waited for by griddepcontrol.wait, and
// what those in between had not (racelaunches.go).
//
// What it does not check: races between streams.
//
// PTX that other compilers print runs too: generic addresses, variables of the
// module, a thread's own memory, doubles and halves, every direction of rounding
// (exact.go; sums and products that do not say .rn are not contracted, as an
// assembler may). mma.sync and wmma add floats as wgmma does. Functions are called, by
// address and by themselves too (functions.go); of those that the driver brings a
// program, __assertfail is a fault that says the assertion, and printf prints nothing.
// Tensor maps may lie in global memory, made field by field by tensormap.replace: who
// uses one needs fence.proxy.tensormap between the changes and the use.
// Sparse products, mma.sp and wgmma's, add what the metadata pick as dense ones add all
// (sparse.go); metadata that the manual leaves undefined are a fault.
//
// The parts that need no program: FP32 arithmetic (float.go) and the
// approximate functions (approx.go), conversions (convert.go), the way wgmma
// adds (internal/mma), matrix descriptors and swizzles, tensor maps and the
// walk of their boxes, the mbarrier, and which element each thread's registers
// hold (fragment.go). Simple instructions are the table of internal/gen.
//
// A core computes some 10 billion operations of wgmma, or 10 to 40 million warp
// instructions, in a second (bench_test.go).
//
// What the emulator does not know is an error that names it, never a guess.
// Where a detail of the chip has not been measured and one reading is the
// obvious one, the comment beside it says that it is assumed.
package emu

//go:generate go run ./internal/gen
