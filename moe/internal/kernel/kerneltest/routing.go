package kerneltest

import "sonicmoe/jit/schedule"

// CountsOf returns what the routing kernels count, [CTAs, E]: for each CTA's range of pairs,
// how many of the expert ids name each expert. Ids outside [0, E) are not counted.
func CountsOf(ids []int32, experts, pairsPerCTA, ctas int) []uint32 {
	counts := make([]uint32, ctas*experts)
	for i, id := range ids {
		if id >= 0 && int(id) < experts {
			counts[i/pairsPerCTA*experts+int(id)]++
		}
	}
	return counts
}

// Plan holds the tensors that order.Plan writes for a routing, and the number of row pairs
// in Table.
type Plan struct {
	Offsets, Gather, Pairs, Inverse, Table []uint32
	RowPairs                               uint32
}

// PlanOf returns the plan of the pairs' expert ids [T, K].
func PlanOf(ids []int32, topK, experts int) Plan {
	p := Plan{Inverse: Poisoned[uint32](len(ids))}
	for e := range experts {
		first := len(p.Gather)
		p.Offsets = append(p.Offsets, uint32(first))
		for i, id := range ids {
			if int(id) == e {
				p.Inverse[i] = uint32(len(p.Gather))
				p.Gather = append(p.Gather, uint32(i/topK))
				p.Pairs = append(p.Pairs, uint32(i))
			}
		}
		for row := first; row < len(p.Gather); row += schedule.PairRows {
			p.Table = append(p.Table, uint32(e), uint32(row), uint32(min(schedule.PairRows, len(p.Gather)-row)), 0)
			p.RowPairs++
		}
	}
	p.Offsets = append(p.Offsets, uint32(len(p.Gather)))
	return p
}
