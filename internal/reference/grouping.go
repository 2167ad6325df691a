package reference

// Grouping is the order of a layer's rows: those of one expert together, in
// the order of their tokens (and slots).
type Grouping struct {
	// Offsets [E+1]: expert e's rows are Offsets[e]..Offsets[e+1]-1.
	Offsets []int32
	// Flat gives each row's place t·K + k among the routed pairs.
	Flat []int32
	// Row is the inverse: the row of pair t·K + k, -1 if its expert is skipped.
	Row []int32
}

// Group orders the pairs of a routing, experts [T, K], by expert. Ids outside
// 0..numExperts-1 are skipped.
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
