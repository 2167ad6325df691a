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

// Load parses, verifies and decodes PTX text. A form that the instruction
// table or the emulator does not know is an error that names it and its line.
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
			e.Body = nil // of which only source lines are still looked up
		}
	}
	return out, nil
}

// Version is the module's PTX .version times ten.
func (m *Module) Version() int { return int(m.text.Version) }

// Kernel finds a kernel by name.
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
	// staticShared is where dynamic shared memory may begin, after static.
	staticShared int
	dynamicAlign int

	slots    [numBanks]int // registers, constants and specials of each bank
	const32  []constant[uint32]
	const64  []constant[uint64]
	specials []specialSlot
	symbols  []constant[uint32] // shared symbols, as offsets in the window
	// wideSymbols are symbols in 64-bit registers.
	wideSymbols []wideSymbol
	localBytes  int         // of a thread's own memory
	functions   []*function // that the kernel may call
	// classes are the registers of accumulators, classOf the class of each
	// 32-bit slot; see accumulator.go.
	classes [][]int32
	classOf []int32
	// fragmentOf numbers the 32-bit slots, so many fragments, that wgmma read A from.
	fragmentOf []int32
	fragments  int
	// asyncShared: the kernel uses shared memory through the async proxy.
	asyncShared bool
}

type constant[T any] struct {
	slot  int32
	value T
}

// wideSymbol is the address of a variable: in shared memory, or from the start of
// the module's image.
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

// Source is the source line behind a line of the PTX, such as "sum.cu:12", by
// the text's .loc; "" where it has none.
func (k *Kernel) Source(line int) string {
	file, n := k.module.text.Source(k.entry, line)
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%s:%d", filepath.Base(file), n)
}

// Name is the kernel's name.
func (k *Kernel) Name() string { return k.entry.Name }

// Params are the parameters with their offsets in the packed buffer.
func (k *Kernel) Params() []ptx.Param { return k.entry.Params }

// ParamBytes is the size of the packed parameter buffer.
func (k *Kernel) ParamBytes() int { return k.entry.ParamBytes() }

// StaticSharedBytes is the shared memory that the kernel declares itself.
func (k *Kernel) StaticSharedBytes() int { return k.staticShared }

// MaxThreads is the largest CTA in threads.
func (k *Kernel) MaxThreads() int {
	for _, n := range []int{k.entry.Block.Count(), k.entry.MaxThreads} {
		if n > 0 {
			return n
		}
	}
	return maxCTAThreads
}

// Cluster is the required shape of a cluster in CTAs, the zero value for any.
func (k *Kernel) Cluster() ptx.Dims { return k.entry.Cluster }

// Registers is how many registers a thread may have under the kernel's launch
// bounds, by the hardware's allocation rule.
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

// operand is a decoded operand: a slot of a register file, where constants
// and special registers have slots of their own.
type operand struct {
	bank   bank
	negate bool    // predicates
	slot   int32   // of the value, or of an address's base
	imm    int64   // added to an address; or the value of an immediate
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
	slot     [4]int32 // of the first four operands; slotZero where absent
	guard    int32    // slot of the guard, -1 for none
	guardNot bool
	// checkGuard, checks: registers read that may not have been written;
	// marks: registers written that such reads look for. See defined.go.
	checkGuard bool
	checks     []slotRef
	marks      []slotRef
	aligned    bool          // needs the whole warp
	accs       bool          // touches registers that some wgmma uses
	product    []*mma.Format // of the elements of A and B that it multiplies asynchronously, or nil
	sparse     *sparsity     // of a sparse product, or nil
	polls      bool          // may spin on global memory
	meets      bool          // a step of a schedule begins here
	atomic     bool          // reads and writes at once
	uncached   bool          // reads by a cache that sees no writes: .nc
	constant   bool          // reads constant memory
	matrix     bool          // accesses shared memory for the warp as one
	size       uint8
	target     int32
	targets    []int32 // of a jump through a table
	called     *calledWith

	// lane computes one lane of an instruction of any widths, from its inputs.
	lane func(v [4]uint64) uint64
	// narrow are addresses of 64 bits that the instruction takes as 32; generic is
	// the instruction as it is in each state space, of those with an address that
	// says the space, and space that of its address otherwise.
	narrow []narrowing
	// warpProduct is what mma.sync multiplies, fragment what wmma loads or stores, across
	// if its columns lie together in memory.
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
	classes  []int32 // of the accumulator
	form     *isa.Form
	mods     isa.Mods
	typ      isa.Type
	number   int // in the kernel's code
	line     int
	role     string // the part of the kernel that it belongs to; see names.go
}

func (in *inst) has(mod string) bool     { return in.form.Has(in.mods, mod) }
func (in *inst) mod(place string) string { return in.form.Mod(in.mods, place) }
