package spec

// PaddedRows is how many rows tiles of so many cover, given how many each expert
// has: what products pay for. Ours skip what a warpgroup's 64 rows don't reach.
func PaddedRows(counts []int, tile int) (rows int64) {
	for _, n := range counts {
		rows += int64((n + tile - 1) / tile * tile)
	}
	return rows
}

// Padding is the share of these rows that no token has, 0 without rows.
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
