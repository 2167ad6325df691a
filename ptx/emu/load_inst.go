package emu

import (
	"sonicmoe/ptx/emu/internal/mma"
	"sonicmoe/ptx/isa"
)

// bank is a register file.
type bank uint8

const (
	bank32 bank = iota // also 16-bit registers, in the lower half
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
	slot   int32   // slot of the value, or of an address's base
	imm    int64   // offset of an address, or value of an immediate
	list   []int32 // slots of a vector or of coordinates; the slot of a scalar
	pair   int32   // slot of the predicate of r|p
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
	aligned    bool          // needs the whole warp
	accs       bool          // touches registers that some wgmma uses
	product    []*mma.Format // formats of A and B of a wgmma, or nil
	sparse     *sparsity     // of a sparse product, or nil
	polls      bool          // may spin on global memory
	meets      bool          // a step of a schedule begins here
	atomic     bool          // reads and writes in one operation
	uncached   bool          // reads through a cache that sees no writes: .nc
	constant   bool          // reads constant memory
	matrix     bool          // accesses shared memory for the warp as a whole
	size       uint8
	target     int32
	targets    []int32 // of a jump through a table
	called     *calledWith

	// lane computes one lane of an instruction from its inputs, for registers of any width.
	lane func(v [4]uint64) uint64
	// narrow lists the 64-bit addresses that the instruction takes as 32 bits. generic holds
	// the variants for each state space of an instruction with a generic address. space is the
	// state space of the address otherwise.
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
	classes  []int32 // classes of the accumulator
	form     *isa.Form
	mods     isa.Mods
	typ      isa.Type
	number   int // index in the kernel's code
	line     int
	role     string // the kernel's role that it belongs to; see report_names.go
}

func (in *inst) has(mod string) bool     { return in.form.Has(in.mods, mod) }
func (in *inst) mod(place string) string { return in.form.Mod(in.mods, place) }
