package choose

import (
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// This file has the keys that the selection compares, and the networks that sort them.
//
// A key is a logit and its expert as one unsigned number. The upper half is the logit,
// mapped so that unsigned order is numeric order. The lower half is the complement of the
// expert's number. The largest key therefore has the largest logit and, among equal
// logits, the lowest expert. -0 and +0 are equal. NaN is above every number, as in
// torch.topk, so that the output shows a broken router. Keys are unique and never 0.

// keyMath has the operations of the selection for keys of one width.
type keyMath[K ptx.Value] struct {
	none     K // below every key
	max, min func(a, b K) K
	xor      func(a K, lanes int) K    // returns the key of the lane whose number differs in these bits
	from     func(a K, lane ptx.U32) K // returns the key of the given lane
	// of returns the keys of two logits. codes are the complements of their experts' numbers.
	of func(logits [2]ptx.F32, codes [2]int) [2]K
	// missing returns a key for an expert past the last one: below the keys of all experts.
	missing func(code int) K
	// beyond returns the same key, with its expert's number increased by the parameter experts.
	beyond func(key K, experts ptx.U32) K
	value  func(K) ptx.F32 // the logit
	code   func(K) ptx.U32 // the expert's complement
	// warpMax returns the largest key of the warp.
	warpMax func(K) K
	equal   func(a, b K) ptx.Pred
}

// expertOf returns the expert's number in a key.
func expertOf[K ptx.Value](key keyMath[K], of K) ptx.U32 {
	return ptx.Uint(expertMask).Sub(key.code(of))
}

// expertMask is the part of a key that holds the expert's complement.
const expertMask = 0xffff

// shortKeys returns the operations on 32-bit keys, whose upper half is a logit rounded to 16 bits.
// The 16 bits are converted to a two's complement number, in which -0 and +0 are the same, and then
// to an unsigned number. NaN, which cvt rounds to 0x7fff, becomes the largest.
func shortKeys(k *ptx.Kernel, e tile.Element) keyMath[ptx.U32] {
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
			word := e.Pack(k, logits[0], logits[1])
			for i, bits := range []ptx.U32{word.ShlI(16), upper(word)} {
				sign := bits.Signed().ShrI(31).Bits()
				keys[i] = bits.Xor(sign.AndI(magnitude)).Sub(sign).AddI(up + codes[i])
			}
			return keys
		},
		missing: func(code int) ptx.U32 { return ptx.Uint(code) },
		beyond:  func(key, experts ptx.U32) ptx.U32 { return key.Sub(experts) },
		value: func(key ptx.U32) ptx.F32 {
			number := upper(key).Sub(ptx.Uint(up))
			negative := number.Signed().Lt(ptx.Int(0))
			return e.Upper(ptx.Select(negative, ptx.Uint(signBit).Sub(number), number))
		},
		code:    func(key ptx.U32) ptx.U32 { return key.AndI(expertMask) },
		warpMax: func(key ptx.U32) ptx.U32 { return key.ReduxMax() },
		equal:   func(a, b ptx.U32) ptx.Pred { return a.Eq(b) },
	}
}

// ordered maps a logit to bits whose unsigned order is the numeric order of logits. NaN becomes the
// largest.
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

// longKeys returns the operations on 64-bit keys, with an FP32 logit in the upper half.
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

// The sorting networks work on keys in registers. Which keys are compared does not depend on their
// values, so there are no branches and no dynamic indices. Lists are sorted from the largest key
// down. ptxas removes comparators whose outputs are unused, so a truncated list only costs the
// keys that it keeps.

// sorted sorts keys in place by Batcher's merge exchange (Knuth, The Art of Computer
// Programming, 5.2.2, algorithm M).
func sorted[K ptx.Value](key keyMath[K], keys []K) []K {
	widest := 1
	for 2*widest < len(keys) {
		widest *= 2
	}
	for p := widest; p > 0; p /= 2 {
		for q, r, d := widest, 0, p; ; q, r, d = q/2, p, q-p {
			for i := 0; i+d < len(keys); i++ {
				if i&p == r {
					keys[i], keys[i+d] = key.max(keys[i], keys[i+d]), key.min(keys[i], keys[i+d])
				}
			}
			if q == p {
				break
			}
		}
	}
	return keys
}

// widestSorted is the largest number of keys that are sorted at once. Wider groups would need as
// many comparisons, but more registers.
const widestSorted = 8

// topOf returns the n largest keys in sorted order, or all keys if there are fewer. It sorts one
// group of keys after another.
func topOf[K ptx.Value](key keyMath[K], keys []K, n int) (top []K) {
	for from := 0; from < len(keys); from += widestSorted {
		top = largest(key, top, sorted(key, keys[from:min(from+widestSorted, len(keys))]), n)
	}
	return top
}

// largest returns the n largest keys of two sorted lists in sorted order, or all keys if there are
// fewer.
func largest[K ptx.Value](key keyMath[K], a, b []K, n int) []K {
	n = min(n, len(a)+len(b))
	// a and b are sorted, the largest key first. The larger keys of a[i] and b[n-1-i], for i from 0
	// to n-1, are the n largest keys. As i grows, they first fall with a[i], then rise with b[n-1-i]: a
	// valley.
	valley := make([]K, n)
	for i := range valley {
		switch other := n - 1 - i; {
		case i >= len(a):
			valley[i] = b[other]
		case other >= len(b):
			valley[i] = a[i]
		default:
			valley[i] = key.max(a[i], b[other])
		}
	}
	return fromValley(key, valley)
}

// fromValley sorts, in place, keys that first fall, then rise, by Batcher's bitonic merge. The
// merge works on an array whose length is a power of two. Array elements after the last key are
// empty: they count as larger than every key, so they move to the front.
func fromValley[K ptx.Value](key keyMath[K], keys []K) []K {
	width := 1
	for width < len(keys) {
		width *= 2
	}
	places := make([]*K, width) // nil is empty
	for i := range keys {
		places[i] = &keys[i]
	}
	for d := width / 2; d > 0; d /= 2 {
		for i := range places {
			j := i + d
			switch {
			case i&d != 0 || places[i] == nil:
			case places[j] == nil:
				places[i], places[j] = nil, places[i]
			default:
				*places[i], *places[j] = key.max(*places[i], *places[j]), key.min(*places[i], *places[j])
			}
		}
	}
	out := make([]K, 0, len(keys))
	for _, p := range places[width-len(keys):] {
		out = append(out, *p)
	}
	return out
}
