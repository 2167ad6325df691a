package emu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
)

// Memory is emulated global memory. Its methods are safe for concurrent use. Gaps separate
// allocations, and addresses are never reused. Fresh memory is filled with 0xff, which is NaN in
// every float format.
type Memory struct {
	limit int64

	mu     sync.Mutex
	used   int64
	next   uint64
	freed  []freed // the latest freed allocations, for messages
	allocs atomic.Pointer[[]*allocation]
	images map[*Module]uint64 // address of each module's variables

	// locks order the atomics and the acquire and release accesses of CTAs that run in parallel.
	locks [64]sync.Mutex
}

type allocation struct {
	base   uint64
	bytes  []byte
	mapped bool // memory of the host, see Memory.Map
	// byKernel states that a kernel called malloc for the memory.
	byKernel bool
}

func (a *allocation) end() uint64 { return a.base + uint64(len(a.bytes)) }

const (
	memoryBase   = 0x7_0000_0000 // address of the first allocation of address space 0
	spaceBits    = 40
	memorySpaces = 128 // with this number, the addresses of all spaces are below 2^47, as on a GPU
	memoryAlign  = 256
	memoryGuard  = 4096 // unmapped bytes between allocations
	poison       = 0xff
)

// Errors of Memory.
var (
	// ErrOutOfMemory reports that an allocation would exceed the limit of the memory.
	ErrOutOfMemory = errors.New("emulated memory is full")
	// ErrAddress reports that an address range is not inside one allocation.
	ErrAddress = errors.New("address is not allocated")
)

// NewMemory returns a memory of at most limit bytes.
func NewMemory(limit int64) *Memory { return NewMemoryAt(0, limit) }

// freed is the address range of an allocation that was freed.
type freed struct{ base, bytes uint64 }

// NewMemoryAt returns a memory of at most limit bytes in one of 128 address spaces. Memories in
// different spaces share no address, so each refuses pointers to the other.
func NewMemoryAt(space uint64, limit int64) *Memory {
	m := &Memory{limit: limit, next: memoryBase + space%memorySpaces<<spaceBits}
	m.allocs.Store(&[]*allocation{})
	return m
}

// Alloc reserves memory of the given size, at least one byte. The address is a multiple of 256.
func (m *Memory) Alloc(bytes int64) (uint64, error) { return m.alloc(bytes, false) }

func (m *Memory) alloc(bytes int64, byKernel bool) (uint64, error) {
	if bytes < 0 {
		return 0, fmt.Errorf("emu: allocation of %d bytes, want 0 or more", bytes)
	}
	bytes = max(bytes, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	if bytes > m.limit-m.used {
		return 0, fmt.Errorf("%w: %d bytes asked, %d of %d free", ErrOutOfMemory, bytes, m.limit-m.used, m.limit)
	}
	a := &allocation{base: m.next, bytes: make([]byte, bytes), byKernel: byKernel}
	fillBytes(a.bytes, poison)
	for b := m.overlaps(a); b != nil; b = m.overlaps(a) {
		a.base = pastGuard(b.end())
	}
	m.insert(a)
	m.used += bytes
	m.next = pastGuard(a.end())
	return a.base, nil
}

// pastGuard returns the first address for an allocation after one that ends at an address.
func pastGuard(end uint64) uint64 {
	return (end + memoryGuard + memoryAlign - 1) / memoryAlign * memoryAlign
}

func fillBytes(b []byte, v byte) {
	if len(b) == 0 {
		return
	}
	b[0] = v
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// Free releases the allocation at an address. Freeing address 0 does nothing.
func (m *Memory) Free(address uint64) error {
	if address == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := *m.allocs.Load()
	i := sort.Search(len(old), func(i int) bool { return old[i].base >= address })
	if i == len(old) || old[i].base != address {
		return fmt.Errorf("%w: free of %#x, which is not the start of an allocation%s", ErrAddress, address, m.freedNote(address))
	}
	m.remove(old[i])
	m.freed = append(m.freed, freed{base: address, bytes: uint64(len(old[i].bytes))})
	if len(m.freed) > 64 {
		m.freed = m.freed[1:]
	}
	return nil
}

// remove takes an allocation out of the list. The caller holds the lock.
func (m *Memory) remove(a *allocation) {
	list := slices.DeleteFunc(slices.Clone(*m.allocs.Load()), func(x *allocation) bool { return x == a })
	m.allocs.Store(&list)
	if !a.mapped {
		m.used -= int64(len(a.bytes))
	}
}

func (m *Memory) freedNote(address uint64) string {
	for _, f := range m.freed {
		if f.base == address {
			return ": it was freed before"
		}
	}
	return ""
}

// Clone returns a copy of the memory, with the same allocations at the same addresses. Later
// changes of either memory do not change the other one.
func (m *Memory) Clone() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &Memory{limit: m.limit, used: m.used, next: m.next, freed: slices.Clone(m.freed), images: maps.Clone(m.images)}
	list := slices.Clone(*m.allocs.Load())
	for i, a := range list {
		list[i] = &allocation{base: a.base, bytes: bytes.Clone(a.bytes), mapped: a.mapped, byKernel: a.byKernel}
	}
	c.allocs.Store(&list)
	return c
}

// Used returns the number of allocated bytes.
func (m *Memory) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// Limit returns the largest number of bytes that may be allocated.
func (m *Memory) Limit() int64 { return m.limit }

// find returns the allocation that holds address. If none does, it returns the nearest one below
// it.
func (m *Memory) find(address uint64) *allocation {
	list := *m.allocs.Load()
	lo, hi := 0, len(list)
	for lo < hi {
		mid := (lo + hi) / 2
		if list[mid].base <= address {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return nil
	}
	return list[lo-1]
}

// bytes returns the memory of an address range, or nil if the range is not inside one allocation.
func (m *Memory) bytes(address, n uint64) []byte {
	a := m.find(address)
	if a == nil || address >= a.end() || n > a.end()-address {
		return nil
	}
	at := address - a.base
	return a.bytes[at : at+n : at+n]
}

// explain says why an address range is not allocated.
func (m *Memory) explain(address, n uint64) string {
	s := fmt.Sprintf("%d bytes at global address %#x", n, address)
	if f := m.freedAt(address); f.bytes > 0 {
		return s + fmt.Sprintf(", byte %d of an allocation of %d bytes that was freed", address-f.base, f.bytes)
	}
	a := m.find(address)
	switch {
	case a != nil && address < a.end():
		return s + fmt.Sprintf(" run past the end of the allocation of %d bytes at %#x by %d bytes", len(a.bytes), a.base, address+n-a.end())
	case a != nil && address-a.end() < 1<<20:
		return s + fmt.Sprintf(", %d bytes past the end of the allocation of %d bytes at %#x", address-a.end(), len(a.bytes), a.base)
	case address >= paramWindow:
		return s + ", which is in the window of kernel parameters: want ld.param"
	}
	if list := *m.allocs.Load(); len(list) > 0 && address < list[0].base && list[0].base-address < 1<<20 {
		return s + fmt.Sprintf(", %d bytes before the allocation at %#x", list[0].base-address, list[0].base)
	}
	return s + ", in no allocation"
}

// freedAt returns the freed allocation that held an address. It returns the zero value if there is
// none.
func (m *Memory) freedAt(address uint64) freed {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.freed {
		if address-f.base < f.bytes {
			return f
		}
	}
	return freed{}
}

func (m *Memory) host(op string, address uint64, n int) ([]byte, error) {
	b := m.bytes(address, uint64(n))
	if b == nil && n > 0 {
		return nil, fmt.Errorf("emu: %s: %w: %s", op, ErrAddress, m.explain(address, uint64(n)))
	}
	return b, nil
}

// Read copies memory to dst.
func (m *Memory) Read(dst []byte, address uint64) error {
	b, err := m.host("read", address, len(dst))
	copy(dst, b)
	return err
}

// Write copies src to memory.
func (m *Memory) Write(address uint64, src []byte) error {
	b, err := m.host("write", address, len(src))
	copy(b, src)
	return err
}

// Copy moves bytes inside the memory; the ranges may overlap.
func (m *Memory) Copy(dst, src uint64, bytes int64) error {
	s, err := m.host("copy", src, int(bytes))
	if err != nil {
		return err
	}
	d, err := m.host("copy", dst, int(bytes))
	copy(d, s)
	return err
}

// Fill32 writes count copies of a 32-bit value.
func (m *Memory) Fill32(address uint64, value uint32, count int64) error {
	switch {
	case address%4 != 0:
		return fmt.Errorf("emu: fill: address %#x , want a multiple of 4", address)
	case count < 0 || count > math.MaxInt64/4:
		return fmt.Errorf("emu: fill: %d words, the memory has %d bytes", count, m.limit)
	}
	b, err := m.host("fill", address, int(4*count))
	for i := 0; i+4 <= len(b); i += 4 {
		binary.LittleEndian.PutUint32(b[i:], value)
	}
	return err
}

// lock returns the lock that orders accesses to an address by CTAs that run in parallel.
func (m *Memory) lock(address uint64) *sync.Mutex { return &m.locks[address>>3&63] }
