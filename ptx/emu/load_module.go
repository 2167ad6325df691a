package emu

import (
	"fmt"
	"path/filepath"
	"sync"

	"sonicmoe/ptx"
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
			e.Body = nil // bodies are not needed to look up source lines
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

	finding       sync.Once // of floatOperands
	floatOperands []floatOperands
	// staticShared is the size of static shared memory, after which dynamic shared memory may
	// begin.
	staticShared int
	dynamicAlign int

	slots     [numBanks]int // number of registers, constants and special registers in each bank
	const32   []constant[uint32]
	const64   []constant[uint64]
	specials  []specialSlot
	symbols   []constant[uint32] // addresses of shared symbols, as offsets in the window
	variables []sharedVariable   // in shared memory, by falling offset
	// wideSymbols are symbols in 64-bit registers.
	wideSymbols []wideSymbol
	localBytes  int         // bytes of a thread's local memory
	functions   []*function // functions that the kernel may call
	// classes lists the registers of each accumulator class, classOf the class of each 32-bit
	// slot; see exec_wgmma_accumulators.go.
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

// Registers returns the largest number of registers that a thread may have under the
// kernel's launch bounds. It follows the hardware's allocation rule.
func (k *Kernel) Registers() int {
	ctas := max(k.entry.MinCTAs, 1)
	threads := (k.MaxThreads() + warpLanes - 1) / warpLanes * warpLanes
	return min(registersPerSM/(ctas*threads)/8*8, 256)
}
