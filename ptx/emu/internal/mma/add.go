package mma

// Registers is the bank of a warp's 32-bit registers, indexed by slot and lane.
type Registers [][Lanes]uint32

// Add adds A*B to rows 16*warp to 16*warp+15 of the accumulator, which belong to one warp. slots[i]
// is the slot of accumulator register i. In this register, lane l holds row l/4 + 8*(i/2%2) of
// these 16 rows, and column 8*(i/4) + 2*(l%4) + i%2. Without keep, the accumulator counts as zero.
func Add(registers Registers, slots []int32, a *A, warp int, b *B, keep bool) {
	var left [maxRegisters]bool
	all := false
	if a.format.Halves { // the vector code drops bits that rounding to FP16 needs
		addNone(slots, &left)
	} else {
		all = addVector(registers, slots, a, warp, b, keep, &left)
	}
	if a.format.Cut > 0 {
		for i, s := range slots {
			for l, sum := range registers[s] {
				if !left[i] {
					registers[s][l] = a.format.cut(sum)
				}
			}
		}
	}
	if all {
		return
	}
	var rows [2 * Group]vector
	for r := range rows {
		rows[r].take(&a.operand, a.index(16*warp+r, 0), Group*rowCopies)
	}
	var columns [columnGroup]vector
	of := -1 // number of the column group that is in columns; -1 for none
	// In this order, registers of one column group are neighbours.
	for j := range slots {
		i := j&^3 | j&1<<1 | j>>1&1
		if !left[i] {
			continue
		}
		if group := i>>2*2 + i&1; group != of {
			of = group
			for c := range columns {
				columns[c].take(&b.operand, b.index(8*(i>>2)+i&1+2*c, 0), columnGroup)
			}
		}
		addRegister(&registers[slots[i]], (*[Group]vector)(rows[i>>1&1*Group:]), &columns, a.format, keep)
	}
}

// maxRegisters is the number of registers of the widest accumulator, 64x256.
const maxRegisters = 128

// addRegister does the same as Add for one register, by the definition in dot.go.
func addRegister(acc *[Lanes]uint32, rows *[Group]vector, columns *[columnGroup]vector, f *Format, keep bool) {
	for l := range acc {
		old := acc[l]
		if !keep {
			old = 0
		}
		acc[l] = dot(old, &rows[l/columnGroup], &columns[l%columnGroup], f)
	}
}

// addNone takes the place of addVector if there is no vector code: it marks all registers in left.
func addNone(slots []int32, left *[maxRegisters]bool) bool {
	for i := range slots {
		left[i] = true
	}
	return false
}
