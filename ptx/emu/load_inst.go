package emu

import (
	"sonicmoe/ptx/emu/internal/mma"
	"sonicmoe/ptx/isa"
)

// bank is a register file.
type bank uint8

const (
	bank32 bank = iota // also holds 16-bit registers, in the lower half
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

// operand is a decoded operand: a slot of a register file. Constants and special registers have
// slots of their own.
type operand struct {
	bank   bank
	negate bool    // of a predicate
	slot   int32   // slot of the operand's value, or of the base of an address
	imm    int64   // offset of an address, or the value of an immediate
	list   []int32 // slots of a vector or of coordinates; for a scalar, its slot
	pair   int32   // slot of p in a destination r|p
}

// Slots that every kernel has: zero in each bank, and the predicate true.
const (
	slotZero = 0
	slotTrue = 1
)

// inst is a decoded instruction.
type inst struct {
	exec     execFunc
	slot     [4]int32 // slots of the first four operands; slotZero if absent
	guard    int32    // slot of the guard, -1 for none
	guardNot bool
	// checkGuard and checks name the registers to check for uninitialised reads; marks are the
	// written registers that such checks look at. See load_defined.go.
	checkGuard bool
	checks     []slotRef
	marks      []slotRef
	aligned    bool          // all lanes of the warp must execute the instruction together
	accs       bool          // the instruction touches registers that some wgmma uses
	product    []*mma.Format // formats of A and B of a wgmma, or nil
	sparse     *sparsity     // layout of the metadata, or nil if the product is dense
	polls      bool          // the instruction may poll global memory
	meets      bool          // a step of a schedule begins at the instruction
	atomic     bool          // the instruction reads and writes memory in one operation
	uncached   bool          // the load goes through a cache that sees no writes: .nc
	constant   bool          // reads constant memory
	matrix     bool          // the warp accesses shared memory as a whole
	size       uint8
	target     int32
	targets    []int32 // targets of a jump through a table
	called     *calledWith

	// lane computes one lane of an instruction from its inputs, for registers of any width.
	lane func(v [4]uint64) uint64
	// narrow lists the 64-bit addresses that the instruction takes as 32 bits. If the
	// address is generic, generic holds the variants for each state space; otherwise space
	// is the address' state space.
	narrow []narrowing
	// warpProduct is the product of mma.sync; fragment is what wmma loads or stores; across
	// reports whether the fragment's columns are contiguous in memory.
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
	classes  []int32 // classes of the accumulator's registers
	form     *isa.Form
	mods     isa.Mods
	typ      isa.Type
	number   int // index of the instruction in the kernel's code
	line     int
	role     string // role in the kernel that the instruction belongs to; see report_names.go
}

func (in *inst) has(mod string) bool     { return in.form.Has(in.mods, mod) }
func (in *inst) mod(place string) string { return in.form.Mod(in.mods, place) }
