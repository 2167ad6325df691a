package mma

// Picks holds, for each row of a sparse A, the k of each element that A keeps. A k ranges over both
// halves of B, which together are two steps deep.
type Picks [Rows][MaxDepth]uint8

// AddSparse does the same as [Add] for a sparse A.
func AddSparse(registers Registers, slots []int32, a *A, warp int, b *[2]B, picks *Picks, keep bool) {
	var rows [2 * Group]vector
	for r := range rows {
		rows[r].take(&a.operand, a.index(16*warp+r, 0), Group*rowCopies)
	}
	depth := a.format.Depth()
	each(registers, slots, warp, keep, func(acc uint32, row, column int) uint32 {
		var y vector
		for i, k := range picks[row][:depth] {
			half, at := pickOf(b, column, int(k))
			y.set(i, half.value[at], half.exponent[at])
		}
		return dot(acc, &rows[row%len(rows)], &y, a.format)
	})
}

// AddSparseIntegers does the same as [AddIntegers] for a sparse A.
func AddSparseIntegers(registers Registers, slots []int32, a *A, warp int, b *[2]B, picks *Picks, keep, saturate bool) {
	each(registers, slots, warp, keep, func(acc uint32, row, column int) uint32 {
		sum := int64(int32(acc))
		for i, k := range picks[row][:a.format.Depth()] {
			half, at := pickOf(b, column, int(k))
			sum += int64(int32(a.value[a.index(row, i)])) * int64(int32(half.value[at]))
		}
		return integer(sum, saturate)
	})
}

// pickOf returns the half of B that has k, and the index of the element in this half.
func pickOf(b *[2]B, column, k int) (half *B, at int) {
	half = &b[0]
	if depth := half.format.Depth(); k >= depth {
		half, k = &b[1], k-depth
	}
	return half, half.index(column, k)
}
