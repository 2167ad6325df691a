//go:build !amd64

package mma

func addVector(_ Registers, slots []int32, _ *A, _ int, _ *B, _ bool, left *[maxRegisters]bool) bool {
	return addNone(slots, left)
}

func decodeA([]uint32, []int16, *Tile, bool, bool) bool { return false }
func decodeB([]uint32, []int16, *Tile, bool, bool) bool { return false }
