package emu

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"sonicmoe/ptx"
)

// Module is a decoded PTX module. It is immutable and safe for concurrent use.
type Module struct {
	text    *ptx.Module
	kernels map[string]*Kernel
	image   image
}

// Load parses, verifies and decodes PTX text. If the text has an instruction form that the
// instruction table or the emulator does not know, the error has its name and line.
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
			e.Body = nil // not needed any more: without Files no source line is looked up in it
		}
	}
	return out, nil
}

// Version returns ten times the version that the module's .version directive gives.
func (m *Module) Version() int { return int(m.text.Version) }

// Kernels returns the names of the module's kernels, in the order of the text.
func (m *Module) Kernels() []string {
	var names []string
	for _, e := range m.text.Entries {
		names = append(names, e.Name)
	}
	return names
}

// Kernel returns the kernel with the given name.
func (m *Module) Kernel(name string) (*Kernel, error) {
	k, ok := m.kernels[name]
	if !ok {
		return nil, fmt.Errorf("ptx: no kernel %q in the module", name)
	}
	return k, nil
}

// Kernel is one decoded kernel of a module.
type Kernel struct {
	module *Module
	entry  *ptx.Entry
	code   []inst

	finding       sync.Once // for floatOperands
	floatOperands []floatOperands
	// staticShared is the size of static shared memory. Dynamic shared memory begins after it.
	staticShared int
	dynamicAlign int

	slots     [numBanks]int // number of registers, constants and special registers in each bank
	const32   []constant[uint32]
	const64   []constant[uint64]
	specials  []specialSlot
	symbols   []constant[uint32] // addresses of shared variables, as 32-bit offsets in the window
	variables []sharedVariable   // variables in shared memory, by falling offset
	// wideSymbols has the 64-bit slots that hold addresses of variables.
	wideSymbols []wideSymbol
	localBytes  int         // bytes of a thread's local memory
	functions   []*function // functions that the kernel may call
	// classes lists the register slots of each accumulator class. classOf has the class of each
	// 32-bit slot. See exec_wgmma_accumulators.go.
	classes [][]int32
	classOf []int32
	// fragmentOf numbers the 32-bit slots that hold A of a wgmma. fragments is the count of these
	// slots.
	fragmentOf []int32
	fragments  int
	// asyncShared reports whether the kernel accesses shared memory through the async proxy.
	asyncShared bool
	// reserved reports whether the kernel reads a special register that describes the reserved
	// bytes of shared memory. Such a kernel may access these bytes. They count as written when a
	// CTA starts: cooperative groups clears single bits of a word there before any other write.
	reserved bool
}

type constant[T any] struct {
	slot  int32
	value T
}

// wideSymbol is a 64-bit slot that holds the address of a variable. The address is an offset in
// shared memory or in the module's image.
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

// Source returns the source position of a line of the PTX, such as "sum.cu:12", according to the
// text's .loc directives. It returns "" if they do not say. For code of an inlined function the
// calls follow, the innermost first: "half.h:9 < sum.cu:12". A long list has only its two ends.
func (k *Kernel) Source(line int) string {
	const ends = 2
	var list []string
	for _, p := range k.module.text.Source(k.entry, line) {
		list = append(list, fmt.Sprintf("%s:%d", filepath.Base(p.File), p.Line))
	}
	if len(list) > 2*ends+1 {
		list = slices.Concat(list[:ends], []string{"…"}, list[len(list)-ends:])
	}
	return strings.Join(list, " < ")
}

// Name returns the kernel's name.
func (k *Kernel) Name() string { return k.entry.Name }

// Params returns the parameters, with their offsets in the packed parameter buffer.
func (k *Kernel) Params() []ptx.Param { return k.entry.Params }

// ParamBytes returns the size of the packed parameter buffer.
func (k *Kernel) ParamBytes() int { return k.entry.ParamBytes() }

// StaticSharedBytes returns the size of the shared memory that the kernel declares.
func (k *Kernel) StaticSharedBytes() int { return k.staticShared }

// MaxThreads returns the largest number of threads that a CTA of the kernel may have.
func (k *Kernel) MaxThreads() int {
	for _, n := range []int{k.entry.Block.Count(), k.entry.MaxThreads} {
		if n > 0 {
			return n
		}
	}
	return maxCTAThreads
}

// Cluster returns the cluster shape that the kernel requires, in CTAs. The zero value means any
// shape.
func (k *Kernel) Cluster() ptx.Dims { return k.entry.Cluster }

// Registers returns the largest number of registers that a thread may have under the kernel's
// launch bounds. It follows the allocation rule of the hardware.
func (k *Kernel) Registers() int {
	ctas := max(k.entry.MinCTAs, 1)
	threads := (k.MaxThreads() + warpLanes - 1) / warpLanes * warpLanes
	return min(registersPerSM/(ctas*threads)/8*8, 256)
}
