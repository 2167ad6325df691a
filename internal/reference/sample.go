package reference

import "slices"

// SampleTokens picks tokens on which a large layer is checked. It takes at least want of the
// tokens (all if there are fewer), spread evenly from first to last. It then adds the last
// token of every expert that has tokens but none in the sample. An expert's last token is a
// good choice because it is in the expert's partly filled tile. experts is [T, K]; ids outside
// 0..E-1 are ignored. The result is ascending.
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

// Gather returns the rows of src [T, cols] with the given numbers.
func Gather[E any](src []E, rows []int32, cols int) []E {
	out := make([]E, 0, len(rows)*cols)
	for _, r := range rows {
		out = append(out, src[int(r)*cols:][:cols]...)
	}
	return out
}

// Widen converts scores to float64.
func Widen(scores []float32) []float64 {
	out := make([]float64, len(scores))
	for i, s := range scores {
		out[i] = float64(s)
	}
	return out
}
