// Package gradient is how the gradient of a weight is written: in the layer's type or FP32,
// over what is there or added to it.
package gradient

import (
	"strings"

	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// Mode is how a gradient is written.
type Mode struct {
	// F32 is FP32 instead of the layer's type.
	F32 bool
	// Accumulate adds to what is there, in FP32 with one rounding.
	Accumulate bool
}

// Suffix ends the names of kernels that write so: errors go by the name.
func (g Mode) Suffix() (s string) {
	if g.Accumulate {
		s = "_add"
	}
	if g.F32 {
		s += "_f32"
	}
	return s
}

// Bytes is the bytes of an element.
func (g Mode) Bytes() int {
	if g.F32 {
		return 4
	}
	return 2
}

// Load gives 2 or 4 neighbours of what is there.
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

// Store writes 2 or 4 neighbours.
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

// Write writes 2 or 4 neighbours, or adds them to what is there.
func (g Mode) Write(k *ptx.Kernel, of tile.Element, at ptx.Global, v ...ptx.F32) {
	if g.Accumulate {
		for i, old := range g.Load(of, at, len(v)) {
			v[i] = old.Add(v[i])
		}
	}
	g.Store(k, of, at, v...)
}

// Modes are all of them.
var Modes = [4]Mode{{}, {F32: true}, {Accumulate: true}, {F32: true, Accumulate: true}}

// Index is g's place among the Modes.
func (g Mode) Index() int {
	i := 0
	if g.F32 {
		i++
	}
	if g.Accumulate {
		i += 2
	}
	return i
}

// Kernels is a kernel for each of the Modes: "dw1", "dw1-f32",
// "dw1-add", "dw1-add-f32".
func Kernels[A any](name string, emit func(l registry.Layer, g Mode) (*jit.Kernel[A], error)) (list [4]*registry.Kernel[A]) {
	for i, g := range Modes {
		list[i] = &registry.Kernel[A]{KernelName: name + strings.ReplaceAll(g.Suffix(), "_", "-"), Backward: true,
			Emit: func(l registry.Layer) (*jit.Kernel[A], error) { return emit(l, g) }}
	}
	return list
}
