package mma

import "math"

// AddIntegers does the same as [Add] for integers. Sums wrap around, or saturate if saturate is
// set.
func AddIntegers(registers Registers, slots []int32, a *A, warp int, b *B, keep, saturate bool) {
	each(registers, slots, warp, keep, func(acc uint32, row, column int) uint32 {
		sum, x, y := int64(int32(acc)), a.index(row, 0), b.index(column, 0)
		for range a.format.Depth() {
			sum += int64(int32(a.value[x])) * int64(int32(b.value[y]))
			x, y = x+Group*rowCopies, y+columnGroup
		}
		return integer(sum, saturate)
	})
}

// integer converts a sum to 32 bits: it wraps around or saturates.
func integer(sum int64, saturate bool) uint32 {
	if saturate {
		sum = min(max(sum, math.MinInt32), math.MaxInt32)
	}
	return uint32(sum)
}

// each replaces every element of a warp's accumulator by the result of add for it.
func each(registers Registers, slots []int32, warp int, keep bool, add func(acc uint32, row, column int) uint32) {
	for i, s := range slots {
		acc := &registers[s]
		for l := range acc {
			old := acc[l]
			if !keep {
				old = 0
			}
			acc[l] = add(old, 16*warp+l/4+8*(i/2%2), 8*(i/4)+2*(l%4)+i%2)
		}
	}
}
