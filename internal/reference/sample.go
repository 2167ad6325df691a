package reference

import "slices"

// SampleTokens picks tokens to judge a large layer by: at least want of them
// (all, if there are no more), spread evenly from the first to the last, and
// as many more as it takes to touch every expert that received a token. Of an
// expert that the spread misses it takes the last token, which lies in the
// expert's partly filled tile. experts is [T, K]; ids outside 0..E-1 don't
// count. The result is ascending and depends on the arguments alone.
func SampleTokens(experts []int32, tokens, topK, numExperts, want int) []int32 {
	if topK < 1 || tokens < 1 {
		return nil
	}
	tokens = min(tokens, len(experts)/topK)
	want = min(max(want, 1), tokens)
	touched := make([]bool, numExperts)
	var list []int32
	take := func(t int) {
		list = append(list, int32(t))
		for _, e := range experts[t*topK:][:topK] {
			if e >= 0 && int(e) < numExperts {
				touched[e] = true
			}
		}
	}
	for i := range want {
		take(i * (tokens - 1) / max(want-1, 1))
	}
	for t := tokens - 1; t >= 0; t-- {
		for _, e := range experts[t*topK:][:topK] {
			if e >= 0 && int(e) < numExperts && !touched[e] {
				take(t)
				break
			}
		}
	}
	slices.Sort(list)
	return list
}

// Gather copies the listed rows of src [T, cols], to compare a sample with.
func Gather[E any](src []E, rows []int32, cols int) []E {
	out := make([]E, 0, len(rows)*cols)
	for _, r := range rows {
		out = append(out, src[int(r)*cols:][:cols]...)
	}
	return out
}

// Widen gives FP32 scores as Experts takes them.
func Widen(scores []float32) []float64 {
	out := make([]float64, len(scores))
	for i, s := range scores {
		out[i] = float64(s)
	}
	return out
}
