package choose

import "sonicmoe/ptx"

// Sorting networks on keys in registers: what is compared does not depend on
// the keys, so there are no branches and no dynamic indices. Lists are sorted
// from the largest key down. Comparators whose outputs are unused are dead code,
// which ptxas removes: a truncated list pays only for what it keeps.

// sorted sorts keys in place by Batcher's merge exchange (Knuth, The Art of
// Computer Programming, 5.2.2, algorithm M).
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

// widestSorted is the keys that are sorted at once: wider groups take as many
// comparisons and spill more.
const widestSorted = 8

// topOf is the n largest keys, or all where there are fewer, by size: groups of them
// are sorted one after the other.
func topOf[K ptx.Value](key keyMath[K], keys []K, n int) (top []K) {
	for from := 0; from < len(keys); from += widestSorted {
		top = largest(key, top, sorted(key, keys[from:min(from+widestSorted, len(keys))]), n)
	}
	return top
}

// largest is the n largest keys, or all where there are fewer, of two sorted lists.
func largest[K ptx.Value](key keyMath[K], a, b []K, n int) []K {
	n = min(n, len(a)+len(b))
	// The i-th largest of a is among the n largest of both unless the n-i-th of
	// b is larger: then that is. Of each such two the larger falls, then rises.
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

// fromValley sorts in place keys that fall, then rise, by Batcher's bitonic
// merge. Places behind the last key count as keys above all, which go to the
// front: after each step those places are the ones that no key is at.
func fromValley[K ptx.Value](key keyMath[K], keys []K) []K {
	width := 1
	for width < len(keys) {
		width *= 2
	}
	places := make([]*K, width) // nil is above all keys
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
