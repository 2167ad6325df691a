package emu

import (
	"fmt"
	"slices"
	"sort"
)

// Map adds memory of the host at an address that the caller chooses, usually its own address.
// Kernels and the methods of m then read and write the bytes themselves, not a copy. Mapped memory
// does not count against the limit. Free removes it. The range must not overlap an allocation.
func (m *Memory) Map(address uint64, bytes []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := &allocation{base: address, bytes: bytes, mapped: true}
	switch n := uint64(len(bytes)); {
	case n == 0:
		return fmt.Errorf("emu: mapping at %#x has no bytes, want one at least", address)
	case address == 0 || a.end() > sharedWindow || a.end() < address:
		return fmt.Errorf("emu: mapping of %d bytes at %#x, want addresses from 1 to %#x", n, address, uint64(sharedWindow))
	}
	if b := m.overlaps(a); b != nil {
		return fmt.Errorf("emu: mapping of %d bytes at %#x overlaps the allocation of %d bytes at %#x", len(bytes), address, len(b.bytes), b.base)
	}
	m.insert(a)
	return nil
}

// overlaps returns an allocation that has some of the addresses of a, or nil.
func (m *Memory) overlaps(a *allocation) *allocation {
	for _, b := range *m.allocs.Load() {
		if b.base < a.end() && a.base < b.end() {
			return b
		}
	}
	return nil
}

// insert adds an allocation to the list, which is in the order of addresses.
func (m *Memory) insert(a *allocation) {
	old := *m.allocs.Load()
	if n := len(old); n == 0 || old[n-1].base < a.base {
		list := append(old[:n:n], a)
		m.allocs.Store(&list)
		return
	}
	i := sort.Search(len(old), func(i int) bool { return old[i].base > a.base })
	list := slices.Insert(slices.Clone(old), i, a)
	m.allocs.Store(&list)
}

// Variable returns the address and the size in bytes of a variable of the module in global or
// constant memory. The first call for a module allocates and initialises its variables.
func (m *Memory) Variable(of *Module, name string) (address uint64, bytes int64, err error) {
	for _, v := range of.text.Globals {
		at, ok := of.image.offset(name)
		if v.Name != name || !ok {
			continue
		}
		base, err := m.image(of)
		return base + uint64(at), int64(v.Bytes), err
	}
	return 0, 0, fmt.Errorf("ptx: no variable %q in global or constant memory of the module", name)
}

// Bytes returns the memory of an address range itself, not a copy. A host may change it while no
// kernel runs.
func (m *Memory) Bytes(address uint64, n int) ([]byte, error) { return m.host("bytes", address, n) }

// Range returns the address and the size in bytes of the allocation that has the byte at an
// address. ok reports whether there is one.
func (m *Memory) Range(address uint64) (base uint64, bytes int64, ok bool) {
	a := m.find(address)
	if a == nil || address >= a.end() {
		return 0, 0, false
	}
	return a.base, int64(len(a.bytes)), true
}
