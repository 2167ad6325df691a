package emu

import (
	"encoding/binary"
	"fmt"

	"sonicmoe/ptx"
	"sonicmoe/ptx/isa"
)

// image describes the initial contents of a module's variables in global and constant memory. A
// memory that runs kernels of the module holds one copy, which persists between launches.
type image struct {
	bytes     []byte
	offsets   map[string]int
	addresses []ptx.Address // places that hold the address of a variable; At is the offset in the image
}

func newImage(m *ptx.Module) (image, error) {
	im := image{offsets: map[string]int{}}
	for _, v := range m.Globals {
		if v.Shared() || v.Extern {
			continue
		}
		at := (len(im.bytes) + v.Align - 1) / v.Align * v.Align
		im.bytes = append(im.bytes, make([]byte, at+v.Bytes-len(im.bytes))...)
		im.offsets[v.Name] = at
		copy(im.bytes[at:], v.Init)
		for _, a := range v.Addresses {
			a.At += at
			im.addresses = append(im.addresses, a)
		}
	}
	for _, a := range im.addresses {
		if _, ok := im.offsets[a.Sym]; !ok && m.Func(a.Sym) == nil {
			return im, fmt.Errorf("ptx: an initial value is the address of %s, want a function or a variable in global or constant memory", a.Sym)
		}
	}
	return im, nil
}

// offset returns the offset of a variable in the image.
func (im *image) offset(name string) (int, bool) {
	at, ok := im.offsets[name]
	return at, ok
}

// image returns the address of a module's variables in the memory. The first call for a module
// allocates and initialises them.
func (m *Memory) image(mod *Module) (uint64, error) {
	if len(mod.image.bytes) == 0 {
		return 0, nil
	}
	m.mu.Lock()
	at, ok := m.images[mod]
	m.mu.Unlock()
	if ok {
		return at, nil
	}
	at, err := m.Alloc(int64(len(mod.image.bytes)))
	if err != nil {
		return 0, fmt.Errorf("the module's variables: %w", err)
	}
	b := m.bytes(at, uint64(len(mod.image.bytes)))
	copy(b, mod.image.bytes)
	for _, a := range mod.image.addresses {
		if n := numberOf(mod.text, a.Sym); n >= 0 {
			binary.LittleEndian.PutUint64(b[a.At:], functionAddress(n))
			continue
		}
		binary.LittleEndian.PutUint64(b[a.At:], at+uint64(int64(mod.image.offsets[a.Sym])+a.Add))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.images == nil {
		m.images = map[*Module]uint64{}
	}
	m.images[mod] = at
	return at, nil
}

func inSharedSpace(s isa.Space) bool { return s == isa.Shared || s == isa.SharedCluster }
