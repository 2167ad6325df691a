package spec

// PaddedRows returns the number of rows that are computed if each expert's rows are rounded up to
// whole tiles. The parameter tile is the number of rows of a tile. counts has the number of rows of
// each expert. A value of tile below 1 counts as 1.
func PaddedRows(counts []int, tile int) (rows int64) {
	tile = max(tile, 1)
	for _, n := range counts {
		rows += int64((n + tile - 1) / tile * tile)
	}
	return rows
}

// Padding returns the share of PaddedRows that holds no token, or 0 if there are no rows.
func Padding(counts []int, tile int) float64 {
	var used int64
	for _, n := range counts {
		used += int64(n)
	}
	all := PaddedRows(counts, tile)
	if all == 0 {
		return 0
	}
	return 1 - float64(used)/float64(all)
}

// Counts returns the number of tokens that each expert gets after rounding. chosen has the
// number of tokens that chose each expert. RoundMass is treated as RoundStochastic, because it
// depends on scores.
func (r Rounding) Counts(c Config, chosen []int, tokens int, seed uint64) []int {
	counts, drift := make([]int, len(chosen)), 0
	for e, f := range chosen {
		tile := r.Rows()
		down := f / tile * tile
		up := (f + tile - 1) / tile * tile
		if up > tokens {
			up = down // the call has fewer tokens than up
		}
		n := f
		goUp := func(does bool) {
			if n = down; does {
				n = up
			}
		}
		switch r.Rule {
		case RoundNearest:
			goUp(up-f < f-down && up > down)
		case RoundStochastic, RoundMass:
			goUp(float64(r.Draw(seed, e))/(1<<32) < float64(f-down)/float64(tile))
		case RoundBalanced:
			goUp(max(up-f+drift, f-up-drift) < max(down-f+drift, f-down-drift))
		case RoundUp:
			goUp(true)
		case RoundDown:
			goUp(false)
		case ExpertChoice:
			if r.Capacity != 0 {
				n = r.CapacityOf(c, tokens)
			}
		case CapacityDrop:
			n = min(f, r.CapacityOf(c, tokens))
		}
		counts[e] = n
		drift += n - f
	}
	return counts
}
