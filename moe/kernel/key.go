package kernel

import (
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// A key is a logit and its expert as one unsigned number: the logit, mapped so
// that unsigned order is numeric order, above the expert's complement. The
// largest key is then the largest logit and, of equal logits, the lower
// expert's. -0 and +0 tie; NaN maps below every number. Keys are unique and
// never 0.

// keyMath is what the selection does with keys of one width.
type keyMath[K ptx.Value] struct {
	none, all K // below and above every key
	less      func(a, b K) ptx.Pred
	max       func(a, b K) K
	xor       func(a K, lanes int) K          // the key of the lane that differs in these bits
	from      func(a K, lane ptx.U32) K       // the key of the given lane
	of        func(f ptx.F32, code ptx.U32) K // code is the expert's complement
	value     func(K) ptx.F32
	code      func(K) ptx.U32
}

// expertMask is the part of a key that holds the expert's complement.
const expertMask = 0xffff

// ordered maps a logit to bits whose unsigned order is its numeric order, NaN
// to 0.
func ordered(f ptx.F32) ptx.U32 {
	bits := f.Add(ptx.Float(0)).Bits() // -0 becomes +0
	flip := bits.Signed().ShrI(31).Bits().OrI(0x80000000)
	return ptx.Select(f.Eq(f), bits.Xor(flip), ptx.Uint(0))
}

// unordered is the inverse of ordered; 0 becomes a NaN.
func unordered(bits ptx.U32) ptx.F32 {
	positive := bits.Signed().Lt(ptx.Int(0))
	return bits.Xor(ptx.Select(positive, ptx.Uint(0x80000000), ptx.Uint(0xffffffff))).AsF32()
}

// shortKeys hold a logit that is already rounded to bf16 in the upper half of
// 32 bits.
func shortKeys() keyMath[ptx.U32] {
	upper := func(x ptx.U32) ptx.U32 { return x.AndI(^expertMask & 0xffffffff) }
	return keyMath[ptx.U32]{
		none: ptx.Uint(0), all: ptx.Uint(0xffffffff),
		less:  func(a, b ptx.U32) ptx.Pred { return a.Lt(b) },
		max:   func(a, b ptx.U32) ptx.U32 { return a.Max(b) },
		xor:   func(a ptx.U32, lanes int) ptx.U32 { return a.ShflXor(lanes) },
		from:  func(a, lane ptx.U32) ptx.U32 { return a.ShflIdx(lane) },
		of:    func(f ptx.F32, code ptx.U32) ptx.U32 { return upper(ordered(f)).Or(code) },
		value: func(key ptx.U32) ptx.F32 { return upper(unordered(key).Bits()).AsF32() },
		code:  func(key ptx.U32) ptx.U32 { return key.AndI(expertMask) },
	}
}

// longKeys hold an FP32 logit in the upper half of 64 bits.
func longKeys(k *ptx.Kernel) keyMath[ptx.U64] {
	each := func(a ptx.U64, f func(ptx.U32) ptx.U32) ptx.U64 {
		lo, hi := a.Unpack()
		return k.Pack64(f(lo), f(hi))
	}
	return keyMath[ptx.U64]{
		none: ptx.Long(0), all: ptx.Long(1<<64 - 1),
		less: func(a, b ptx.U64) ptx.Pred { return a.Lt(b) },
		max:  func(a, b ptx.U64) ptx.U64 { return a.Max(b) },
		xor: func(a ptx.U64, lanes int) ptx.U64 {
			return each(a, func(x ptx.U32) ptx.U32 { return x.ShflXor(lanes) })
		},
		from: func(a ptx.U64, lane ptx.U32) ptx.U64 {
			return each(a, func(x ptx.U32) ptx.U32 { return x.ShflIdx(lane) })
		},
		of: func(f ptx.F32, code ptx.U32) ptx.U64 { return k.Pack64(code, ordered(f)) },
		value: func(key ptx.U64) ptx.F32 {
			_, hi := key.Unpack()
			return unordered(hi)
		},
		code: func(key ptx.U64) ptx.U32 {
			lo, _ := key.Unpack()
			return lo
		},
	}
}

// newTopK is the selection for the layer's logit format.
func newTopK(k *ptx.Kernel, format spec.Logits, topK int, thread ptx.U32) topKSelection {
	if format == spec.LogitsF32 {
		return newSelection(k, longKeys(k), topK, thread, func(a, b ptx.F32) (ptx.F32, ptx.F32) { return a, b })
	}
	return newSelection(k, shortKeys(), topK, thread, func(a, b ptx.F32) (ptx.F32, ptx.F32) { return k.PackBF16(a, b).Unpack() })
}
