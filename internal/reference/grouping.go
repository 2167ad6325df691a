package reference

// Grouping is the order of a layer's packed rows, one for each (token, slot) pair: by expert,
// then by token, then by slot.
type Grouping struct {
	// Offsets is [E+1]. The rows of expert e are Offsets[e] to Offsets[e+1]-1.
	Offsets []int32
	// Flat is, for each row, the index t·K + k of its pair in the tensors [T, K].
	Flat []int32
	// Row is the inverse of Flat: the row of pair t·K + k, or -1 if its expert is skipped.
	Row []int32
}

// Group returns the grouping of the expert ids of a routing, [T, K]. Ids outside
// 0..numExperts-1 have no row.
func Group(experts []int32, numExperts int) Grouping {
	g := Grouping{Offsets: make([]int32, numExperts+1), Row: make([]int32, len(experts))}
	valid := func(e int32) bool { return e >= 0 && int(e) < numExperts }
	for _, e := range experts {
		if valid(e) {
			g.Offsets[e+1]++
		}
	}
	for e := range numExperts {
		g.Offsets[e+1] += g.Offsets[e]
	}
	g.Flat = make([]int32, g.Offsets[numExperts])
	next := append([]int32{}, g.Offsets...)
	for flat, e := range experts {
		if !valid(e) {
			g.Row[flat] = -1
			continue
		}
		g.Row[flat] = next[e]
		g.Flat[next[e]] = int32(flat)
		next[e]++
	}
	return g
}
