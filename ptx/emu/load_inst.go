package emu

import (
	"sonicmoe/ptx/emu/internal/mma"
	"sonicmoe/ptx/isa"
)

// bank is a register file. Each type of register has its own.
type bank uint8

const (
	bank32 bank = iota // also holds 16-bit registers, in the lower half of a slot
	bank64
	bankPred
	numBanks
	bankNone = numBanks
)

func bankOf(class isa.Type) bank {
	switch class {
	case isa.Pred:
		return bankPred
	case isa.B64:
		return bank64
	}
	return bank32
}

// operand is a decoded operand: a slot of a register bank. Constants and special registers have
// slots of their own.
type operand struct {
	bank   bank
	negate bool    // the predicate is negated
	slot   int32   // slot of the operand's value, or of the base of an address
	imm    int64   // offset of an address, or the value of an immediate
	list   []int32 // slots of a vector or of coordinates; for a scalar, its own slot
	pair   int32   // slot of p in a destination r|p
}

// Slots that exist in every kernel. slotZero holds zero in each bank, and slotTrue the predicate
// true.
const (
	slotZero = 0
	slotTrue = 1
)

// inst is a decoded instruction.
type inst struct {
	exec     execFunc
	slot     [4]int32 // slots of the first four operands; slotZero if absent
	guard    int32    // slot of the guard predicate, -1 for none
	guardNot bool
	// checkGuard and checks name the registers whose reads must be checked at run time for
	// uninitialised values. marks names the written registers that such checks need to know about.
	// See load_defined.go.
	checkGuard bool
	checks     []slotRef
	marks      []slotRef
	aligned    bool          // all lanes of the warp must execute the instruction together
	accs       bool          // the instruction accesses registers that some wgmma uses
	product    []*mma.Format // formats of A and B of a wgmma, or nil
	sparse     *sparsity     // layout of the metadata, or nil if the product is dense
	polls      bool          // the instruction may poll global memory
	meets      bool          // a step of a schedule begins at the instruction
	passes     bool          // a lane without a value in a source gets none in the result; see run_unknown.go
	atomic     bool          // the instruction reads and writes memory in one operation
	uncached   bool          // the load uses a cache that does not see writes: .nc
	constant   bool          // the instruction reads constant memory
	matrix     bool          // the whole warp accesses shared memory together: ldmatrix, stmatrix
	size       uint8
	target     int32
	targets    []int32 // targets of a jump through a table
	called     *calledWith

	// lane computes the instruction for one lane from its inputs v. A register narrower than 64
	// bits is in the lower bits of its word.
	lane func(v [4]uint64) uint64
	// narrow lists the 64-bit address operands that the instruction's handler needs as 32-bit
	// addresses. space is the state space of the address. If the address is generic, generic holds
	// a variant of the instruction for each state space.
	narrow []narrowing
	// warpProduct describes the product of an mma.sync. fragment is the matrix that a wmma.load or
	// wmma.store moves; across reports whether the fragment's columns are contiguous in memory.
	warpProduct *warpProduct
	fragment    *warpFragment
	across      bool
	scratch     scratch
	generic     *genericForms
	space       isa.Space
	op32        func(a, b, c uint32) uint32
	op64        func(a, b, c uint64) uint64
	cmp32       func(a, b uint32) bool

	use, def [numBanks][]int32
	args     []operand
	classes  []int32 // classes of the accumulator's registers; see exec_wgmma_accumulators.go
	form     *isa.Form
	mods     isa.Mods
	typ      isa.Type
	number   int // index of the instruction in the kernel's code
	line     int
	role     string // name of the kernel's part (a scope of labels) to which the instruction belongs; see report_names.go
}

func (in *inst) has(mod string) bool     { return in.form.Has(in.mods, mod) }
func (in *inst) mod(place string) string { return in.form.Mod(in.mods, place) }
