package emu

import (
	"fmt"
	"path/filepath"

	"sonicmoe/ptx"
	"sonicmoe/ptx/emu/internal/mma"
	"sonicmoe/ptx/isa"
)

// Module is decoded PTX. It is immutable and safe for concurrent use.
type Module struct {
	text    *ptx.Module
	kernels map[string]*Kernel
	image   image
}

// Load parses, verifies and decodes PTX text. It fails with the name and line of any
// instruction form that the instruction table or the emulator does not know.
func Load(text []byte) (*Module, error) {
	m, err := ptx.Parse(text)
	if err != nil {
		return nil, err
	}
	if err := m.Verify(); err != nil {
		return nil, err
	}
	out := &Module{text: m, kernels: map[string]*Kernel{}}
	if out.image, err = newImage(m); err != nil {
		return nil, err
	}
	for _, e := range m.Entries {
		k, err := decodeKernel(out, e)
		if err != nil {
			return nil, fmt.Errorf("ptx: kernel %s: %w", e.Name, err)
		}
		out.kernels[e.Name] = k
		if len(m.Files) == 0 {
			e.Body = nil // only needed to look up source lines
		}
	}
	return out, nil
}

// Version returns the module's PTX .version times ten.
func (m *Module) Version() int { return int(m.text.Version) }

// Kernel returns the kernel with the given name.
func (m *Module) Kernel(name string) (*Kernel, error) {
	k, ok := m.kernels[name]
	if !ok {
		return nil, fmt.Errorf("ptx: no kernel %q in the module", name)
	}
	return k, nil
}

// Kernel is one decoded kernel.
type Kernel struct {
	module *Module
	entry  *ptx.Entry
	code   []inst
	// staticShared is the size of static shared memory, after which dynamic shared memory may
	// begin.
	staticShared int
	dynamicAlign int

	slots    [numBanks]int // number of registers, constants and special registers in each bank
	const32  []constant[uint32]
	const64  []constant[uint64]
	specials []specialSlot
	symbols  []constant[uint32] // shared symbols, as offsets in the window
	// wideSymbols are symbols in 64-bit registers.
	wideSymbols []wideSymbol
	localBytes  int         // size of a thread's local memory
	functions   []*function // functions that the kernel may call
	// classes lists the registers of each accumulator class, classOf the class of each 32-bit
	// slot; see accumulator.go.
	classes [][]int32
	classOf []int32
	// fragmentOf numbers the 32-bit slots from which wgmma reads A; fragments is their count.
	fragmentOf []int32
	fragments  int
	// asyncShared reports whether the kernel accesses shared memory through the async proxy.
	asyncShared bool
}

type constant[T any] struct {
	slot  int32
	value T
}

// wideSymbol is the address of a variable: in shared memory, or relative to the module's image.
type wideSymbol struct {
	slot   int32
	offset uint64
	shared bool
}

type specialSlot struct {
	bank bank
	slot int32
	name string
}

// Source returns the source position of a line of the PTX, such as "sum.cu:12", according to
// the text's .loc directives, or "".
func (k *Kernel) Source(line int) string {
	file, n := k.module.text.Source(k.entry, line)
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%s:%d", filepath.Base(file), n)
}

// Name returns the kernel's name.
func (k *Kernel) Name() string { return k.entry.Name }

// Params returns the parameters with their offsets in the packed buffer.
func (k *Kernel) Params() []ptx.Param { return k.entry.Params }

// ParamBytes returns the size of the packed parameter buffer.
func (k *Kernel) ParamBytes() int { return k.entry.ParamBytes() }

// StaticSharedBytes returns the size of the shared memory that the kernel declares.
func (k *Kernel) StaticSharedBytes() int { return k.staticShared }

// MaxThreads returns the largest number of threads in a CTA.
func (k *Kernel) MaxThreads() int {
	for _, n := range []int{k.entry.Block.Count(), k.entry.MaxThreads} {
		if n > 0 {
			return n
		}
	}
	return maxCTAThreads
}

// Cluster returns the required shape of a cluster in CTAs, or the zero value for any.
func (k *Kernel) Cluster() ptx.Dims { return k.entry.Cluster }

// Registers returns the number of registers a thread may have under the kernel's launch bounds,
// by the hardware's allocation rule.
func (k *Kernel) Registers() int {
	ctas := max(k.entry.MinCTAs, 1)
	threads := (k.MaxThreads() + warpLanes - 1) / warpLanes * warpLanes
	return min(registersPerSM/(ctas*threads)/8*8, 256)
}

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
	// written registers that such checks look at. See defined.go.
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
	role     string // the kernel's role that it belongs to; see names.go
}

func (in *inst) has(mod string) bool     { return in.form.Has(in.mods, mod) }
func (in *inst) mod(place string) string { return in.form.Mod(in.mods, place) }
