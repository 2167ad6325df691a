package mma

import "math"

// AddIntegers is [Add] of integers, whose sums wrap around or saturate.
func AddIntegers(registers Registers, slots []int32, a *A, warp int, b *B, keep, saturate bool) {
	for i, s := range slots {
		acc := &registers[s]
		for l := range acc {
			row, column := 16*warp+l/4+8*(i/2%2), 8*(i/4)+2*(l%4)+i%2
			sum := int64(0)
			if keep {
				sum = int64(int32(acc[l]))
			}
			x, y := a.index(row, 0), b.index(column, 0)
			for range a.format.Depth() {
				sum += int64(int32(a.value[x])) * int64(int32(b.value[y]))
				x, y = x+Group*rowCopies, y+columnGroup
			}
			if saturate {
				sum = min(max(sum, math.MinInt32), math.MaxInt32)
			}
			acc[l] = uint32(sum)
		}
	}
}
