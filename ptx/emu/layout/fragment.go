package layout

// The matrix element that each thread's registers hold. Threads are numbered 0 to 127 in the
// warpgroup for wgmma, lanes 0 to 31 in the warp for ldmatrix and stmatrix.

// AccumulatorPosition returns the row (of 64) and column (of N) of register i, 0 to N/2-1, of
// an FP32 accumulator of wgmma. A 16-bit accumulator packs registers i and i+1 into one, lower
// half first.
func AccumulatorPosition(thread, i int) (row, col int) {
	warp, lane := thread>>5, thread&31
	return 16*warp + lane>>2 + 8*(i>>1&1), 8*(i>>2) + 2*(lane&3) + i&1
}

// APosition returns the row (of 64) and k of an element of wgmma's A in registers: element
// i, lowest first, of register j, 0 to 3. Each register holds per elements.
func APosition(thread, j, i, per int) (row, k int) {
	warp, lane := thread>>5, thread&31
	return 16*warp + lane>>2 + 8*(j&1), per*(4*(j>>1)+lane&3) + i
}

// MatrixPosition returns the row and column, in an 8x8 matrix, of one half of a lane's
// register, for ldmatrix and stmatrix; transposed is .trans.
func MatrixPosition(lane, half int, transposed bool) (row, col int) {
	row, col = lane>>2, 2*(lane&3)+half
	if transposed {
		return col, row
	}
	return row, col
}

// MatrixRowLane returns the lane whose address operand gives row 0 to 7 of matrix j, 0 to 3,
// for ldmatrix and stmatrix; a row is 16 bytes.
func MatrixRowLane(j, row int) int { return 8*j + row }
