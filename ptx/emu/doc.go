// Package emu runs PTX kernels on the CPU. Where a Hopper GPU's arithmetic is specified or
// measured, results are bit-identical to the GPU's.
//
// [Load] parses, verifies and decodes PTX text. [Kernel.Launch] runs a grid on a [Memory]. The
// lanes of a warp may diverge and reconverge. Clusters of CTAs run in parallel goroutines. The
// warps of one cluster take turns in one goroutine, so a launch gives the same result each time.
// [Timing] selects when cp.async, TMA and wgmma complete: at the earliest, the latest or a random
// legal moment. A missing wait therefore shows as a wrong result or a fault.
//
// A kernel that breaks a rule ends with a [Fault]. The fault names the rule and the line of the
// PTX, and describes what was wrong: deadlocks (which warp waits for which barrier and phase),
// accesses out of bounds or misaligned, reads of uninitialised registers and shared memory,
// accumulators touched in flight, missing fences, illegal descriptors, misused barriers, and
// divergence at instructions that need the whole warp.
//
// The emulator follows the manual strictly where hardware is lenient. For example, a CTA must wait
// for the bulk copies that use its shared memory before it ends, and a barrier that an exited warp
// misses is a deadlock.
//
// Each finding has a severity. A [Note] names a rule that chips do not need, such as the wait for a
// CTA's last bulk stores. A run goes on after notes. It goes on after other findings if Launch.GoOn
// accepts them.
//
// With Launch.Races the emulator also finds races: pairs of accesses to shared or global memory
// that nothing orders. It finds them independent of the order in which the accesses happened to
// run. It covers loads, stores, atomics and their scopes, cp.async, TMA, wgmma's reads, the use of
// mbarriers, and ld.global.nc of memory that the kernel writes. Rules that users may not expect:
//
//   - Only barriers and bar.warp.sync order the lanes of one warp; shuffles and lockstep execution do
//     not.
//   - A lane that signals for its warp also publishes the accesses of the other lanes of which it
//     knows. What a lane learns from a signal reaches the other lanes only at the next such barrier.
//   - A matrix descriptor must match the box that TMA wrote at its address.
//   - A CTA must have started before another CTA accesses its shared memory. It must not end before
//     these accesses and its own bulk loads are complete.
//
// [Kernel.Check] runs a launch early, late and in random orders. [Kernel.Explore] runs a small
// launch in every order that a warp could tell apart from the others, or in as many as the caller
// allows, and reports how many orders it has covered.
//
// TestDroppedLines of moe/internal/sweeps measures how many missing lines the emulator notices. It
// drops or weakens each ordering instruction of the layer's kernels in turn, counts those that a
// finding names, and lists for each of the others what else orders the same accesses.
//
// With Launch.Report the emulator counts what a launch does: bytes at each level, bank conflicts,
// sectors of global memory, instructions by role, and a timeline of the warps of one CTA with what
// each waits for. These are counts, not times. report_counter.go says which counts follow from
// documented rules and which are assumed. With Launch.Trace it records the warps, copies and
// products of the first CTAs, for a trace viewer.
//
// Launches of one [Stream] may race with each other too: a programmatic dependent launch may start
// before its predecessors have ended, and only griddepcontrol.wait orders its accesses after the
// accesses of its predecessors. Races between different streams are not checked.
//
// PTX from other compilers runs too: generic addresses, module variables, local memory, FP64 and
// FP16, every rounding mode, calls of functions (also recursive and by address), sparse products,
// and tensor maps that a kernel edits in global memory with tensormap.replace.
// fence.proxy.tensormap must order the edits before the use. Sums and products without .rn are not
// contracted to fma, although an assembler may do so. mma.sync and wmma add floats as wgmma does.
// The emulator provides the functions that the driver provides: an assertion is a fault with its
// text, printf calls Launch.Print, and malloc and free use the global memory. Sparsity metadata that
// the manual leaves undefined are a fault. A kernel that reads one of %reserved_smem_offset_* may
// access the reserved first KiB of shared memory, where multi-warp tiles of cooperative groups
// synchronise.
//
// The prefix of a file name is its subject: load_ decodes PTX, run_ runs grids, clusters and warps,
// memory_ holds global and shared memory, exec_ executes instructions, race_ finds races, explore_
// runs chosen orders, report_ explains faults and counts. Packages that know nothing of warps are
// layout (swizzles, descriptors, tensor maps), internal/arith (scalar arithmetic), internal/mma
// (matrix products) and internal/causal (vector clocks).
//
// One CPU core computes about 10 billion wgmma operations, or 10 to 40 million warp instructions, a
// second (bench_test.go).
//
// The emulator never guesses: an instruction that it does not know is an error, which names the
// instruction. Where a detail of the chip has not been measured and one reading is obvious, a
// comment says that it is assumed.
package emu

//go:generate go run ./internal/gen
