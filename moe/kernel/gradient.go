package kernel

import "sonicmoe/ptx"

// Gradient is how a gradient is written.
type Gradient struct {
	// F32 is FP32 instead of bf16.
	F32 bool
	// Accumulate adds to what is there, in FP32 with one rounding.
	Accumulate bool
}

// suffix ends the names of kernels that write so: errors go by the name.
func (g Gradient) suffix() (s string) {
	if g.Accumulate {
		s = "_add"
	}
	if g.F32 {
		s += "_f32"
	}
	return s
}

// elem is the bytes of an element.
func (g Gradient) elem() int {
	if g.F32 {
		return 4
	}
	return bf16
}

// load gives 2 or 4 neighbours of what is there.
func (g Gradient) load(at ptx.Global, n int) []ptx.F32 {
	if g.F32 {
		return ptx.LdGlobalVec[ptx.F32](at, n)
	}
	words := []ptx.U32{ptx.LdGlobal[ptx.U32](at)}
	if n == 4 {
		words = ptx.LdGlobalVec[ptx.U32](at, 2)
	}
	var v []ptx.F32
	for _, w := range words {
		lo, hi := w.AsBF16x2().Unpack()
		v = append(v, lo, hi)
	}
	return v
}

// store writes 2 or 4 neighbours.
func (g Gradient) store(k *ptx.Kernel, at ptx.Global, v ...ptx.F32) {
	if g.F32 {
		ptx.StGlobal(at, v...)
		return
	}
	var words []ptx.U32
	for i := 0; i < len(v); i += 2 {
		words = append(words, k.PackBF16(v[i], v[i+1]).Bits())
	}
	ptx.StGlobal(at, words...)
}

// write writes 2 or 4 neighbours, or adds them to what is there.
func (g Gradient) write(k *ptx.Kernel, at ptx.Global, v ...ptx.F32) {
	if g.Accumulate {
		for i, old := range g.load(at, len(v)) {
			v[i] = old.Add(v[i])
		}
	}
	g.store(k, at, v...)
}
