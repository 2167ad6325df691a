// Package gradient has the modes in which kernels write the gradient of a weight. A gradient is in
// the layer's element type or in FP32, and overwrites the old values or is added to them.
package gradient

import (
	"slices"
	"strings"

	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// Mode is the format and operation with which a gradient is written.
type Mode struct {
	// F32 writes FP32 instead of the layer's element type.
	F32 bool
	// Accumulate adds to the old values, in FP32, and rounds the sum once.
	Accumulate bool
}

// Suffix returns the end of the entry names of kernels that write in this mode.
func (g Mode) Suffix() (s string) {
	if g.Accumulate {
		s = "_add"
	}
	if g.F32 {
		s += "_f32"
	}
	return s
}

// Bytes returns the size of an element.
func (g Mode) Bytes() int {
	if g.F32 {
		return 4
	}
	return 2
}

// Load loads 2 or 4 neighbouring old values of a gradient.
func (g Mode) Load(of tile.Element, at ptx.Global, n int) []ptx.F32 {
	if g.F32 {
		return ptx.LdGlobalVec[ptx.F32](at, n)
	}
	words := []ptx.U32{ptx.LdGlobal[ptx.U32](at)}
	if n == 4 {
		words = ptx.LdGlobalVec[ptx.U32](at, 2)
	}
	var v []ptx.F32
	for _, w := range words {
		lo, hi := of.Unpack(w)
		v = append(v, lo, hi)
	}
	return v
}

// Store writes 2 or 4 neighbouring values.
func (g Mode) Store(k *ptx.Kernel, of tile.Element, at ptx.Global, v ...ptx.F32) {
	if g.F32 {
		ptx.StGlobal(at, v...)
		return
	}
	var words []ptx.U32
	for i := 0; i < len(v); i += 2 {
		words = append(words, of.Pack(k, v[i], v[i+1]))
	}
	ptx.StGlobal(at, words...)
}

// Write writes 2 or 4 neighbouring values, or adds them to the old ones.
func (g Mode) Write(k *ptx.Kernel, of tile.Element, at ptx.Global, v ...ptx.F32) {
	if g.Accumulate {
		for i, old := range g.Load(of, at, len(v)) {
			v[i] = old.Add(v[i])
		}
	}
	g.Store(k, of, at, v...)
}

// Modes lists all modes.
var Modes = [4]Mode{{}, {F32: true}, {Accumulate: true}, {F32: true, Accumulate: true}}

// Set is a kernel for each of the [Modes].
type Set[A any] [len(Modes)]*registry.Kernel[A]

// NewSet makes one kernel for each mode. For the name "dw1" the kernels are "dw1", "dw1-f32",
// "dw1-add" and "dw1-add-f32". row sets all fields of a kernel except its name, Backward and Emit.
func NewSet[A any](name string, row func(k *registry.Kernel[A], g Mode), emit func(l registry.Layer, g Mode) (*jit.Kernel[A], error)) (s Set[A]) {
	for i, g := range Modes {
		s[i] = &registry.Kernel[A]{KernelName: name + strings.ReplaceAll(g.Suffix(), "_", "-"), Backward: true,
			Emit: func(l registry.Layer) (*jit.Kernel[A], error) { return emit(l, g) }}
		row(s[i], g)
	}
	return s
}

// In returns the kernel that writes in mode g.
func (s Set[A]) In(g Mode) *registry.Kernel[A] { return s[slices.Index(Modes[:], g)] }

// Kernels lists the kernels of all modes.
func (s Set[A]) Kernels() (list registry.Registry) {
	for _, k := range s {
		list = append(list, k)
	}
	return list
}
