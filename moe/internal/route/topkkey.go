package route

import (
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// A key is a logit and its expert as one unsigned number: the logit, mapped so
// that unsigned order is numeric order, above the expert's complement. The
// largest key is then the largest logit and, of equal logits, the lower
// expert's. -0 and +0 tie; NaN maps above every number, so that a router gone
// wrong shows in the output, as with torch.topk. Keys are unique and never 0.

// keyMath is what the selection does with keys of one width.
type keyMath[K ptx.Value] struct {
	none     K // below every key
	max, min func(a, b K) K
	xor      func(a K, lanes int) K    // the key of the lane that differs in these bits
	from     func(a K, lane ptx.U32) K // the key of the given lane
	// of is the keys of two logits; codes are the complements of their experts.
	of func(logits [2]ptx.F32, codes [2]int) [2]K
	// missing is the key of an expert that there isn't: below those of all that
	// there are.
	missing func(code int) K
	// beyond is the key with the expert's number raised by experts.
	beyond func(key K, experts ptx.U32) K
	value  func(K) ptx.F32
	code   func(K) ptx.U32
	// warpMax is the largest key of the warp.
	warpMax func(K) K
	equal   func(a, b K) ptx.Pred
}

// expertMask is the part of a key that holds the expert's complement.
const expertMask = 0xffff

// shortKeys hold a logit rounded to bf16 in the upper half of 32 bits: as a two's
// complement number, from which -0 and +0 are the same, and then moved up to be
// unsigned. NaN, which cvt makes 0x7fff, is the largest of all.
func shortKeys(k *ptx.Kernel) keyMath[ptx.U32] {
	const (
		up        = 0x80000000
		signBit   = 0x80000000
		magnitude = 0x7fffffff
	)
	upper := func(x ptx.U32) ptx.U32 { return x.AndI(^expertMask & 0xffffffff) }
	return keyMath[ptx.U32]{
		none: ptx.Uint(0),
		max:  func(a, b ptx.U32) ptx.U32 { return a.Max(b) },
		min:  func(a, b ptx.U32) ptx.U32 { return a.Min(b) },
		xor:  func(a ptx.U32, lanes int) ptx.U32 { return a.ShflXor(lanes) },
		from: func(a, lane ptx.U32) ptx.U32 { return a.ShflIdx(lane) },
		of: func(logits [2]ptx.F32, codes [2]int) (keys [2]ptx.U32) {
			lo, hi := k.PackBF16(logits[0], logits[1]).Unpack()
			for i, f := range []ptx.F32{lo, hi} {
				sign := f.Bits().Signed().ShrI(31).Bits()
				keys[i] = f.Bits().Xor(sign.AndI(magnitude)).Sub(sign).AddI(up + codes[i])
			}
			return keys
		},
		missing: func(code int) ptx.U32 { return ptx.Uint(code) },
		beyond:  func(key, experts ptx.U32) ptx.U32 { return key.Sub(experts) },
		value: func(key ptx.U32) ptx.F32 {
			number := upper(key).Sub(ptx.Uint(up))
			negative := number.Signed().Lt(ptx.Int(0))
			return ptx.Select(negative, ptx.Uint(signBit).Sub(number), number).AsF32()
		},
		code:    func(key ptx.U32) ptx.U32 { return key.AndI(expertMask) },
		warpMax: func(key ptx.U32) ptx.U32 { return key.ReduxMax() },
		equal:   func(a, b ptx.U32) ptx.Pred { return a.Eq(b) },
	}
}

// ordered maps a logit to bits whose unsigned order is its numeric order, NaN
// to the largest.
func ordered(f ptx.F32) ptx.U32 {
	bits := f.Add(ptx.Float(0)).Bits() // -0 becomes +0
	flip := bits.Signed().ShrI(31).Bits().OrI(0x80000000)
	return ptx.Select(f.Eq(f), bits.Xor(flip), ptx.Uint(0xffffffff))
}

// unordered is the inverse of ordered.
func unordered(bits ptx.U32) ptx.F32 {
	positive := bits.Signed().Lt(ptx.Int(0))
	return bits.Xor(ptx.Select(positive, ptx.Uint(0x80000000), ptx.Uint(0xffffffff))).AsF32()
}

// longKeys hold an FP32 logit in the upper half of 64 bits.
func longKeys(k *ptx.Kernel) keyMath[ptx.U64] {
	each := func(a ptx.U64, f func(ptx.U32) ptx.U32) ptx.U64 {
		lo, hi := a.Unpack()
		return k.Pack64(f(lo), f(hi))
	}
	return keyMath[ptx.U64]{
		none: ptx.Long(0),
		max:  func(a, b ptx.U64) ptx.U64 { return a.Max(b) },
		min:  func(a, b ptx.U64) ptx.U64 { return a.Min(b) },
		xor: func(a ptx.U64, lanes int) ptx.U64 {
			return each(a, func(x ptx.U32) ptx.U32 { return x.ShflXor(lanes) })
		},
		from: func(a ptx.U64, lane ptx.U32) ptx.U64 {
			return each(a, func(x ptx.U32) ptx.U32 { return x.ShflIdx(lane) })
		},
		of: func(logits [2]ptx.F32, codes [2]int) (keys [2]ptx.U64) {
			for i, f := range logits {
				keys[i] = k.Pack64(ptx.Uint(codes[i]), ordered(f))
			}
			return keys
		},
		missing: func(code int) ptx.U64 { return ptx.Long(uint64(code)) },
		beyond: func(key ptx.U64, experts ptx.U32) ptx.U64 {
			lo, hi := key.Unpack()
			return k.Pack64(lo.Sub(experts), hi)
		},
		value: func(key ptx.U64) ptx.F32 {
			_, hi := key.Unpack()
			return unordered(hi)
		},
		code: func(key ptx.U64) ptx.U32 {
			lo, _ := key.Unpack()
			return lo
		},
		warpMax: func(key ptx.U64) ptx.U64 {
			lo, hi := key.Unpack()
			best := hi.ReduxMax()
			return k.Pack64(ptx.Select(hi.Eq(best), lo, ptx.Uint(0)).ReduxMax(), best)
		},
		equal: func(a, b ptx.U64) ptx.Pred { return a.Eq(b) },
	}
}

// newTopK is the selection for the layer's logit format.
func newTopK(k *ptx.Kernel, r Router, thread ptx.U32) topKSelection {
	if r.Logits == spec.LogitsF32 {
		return newSelection(k, longKeys(k), r, thread)
	}
	return newSelection(k, shortKeys(k), r, thread)
}
