package emu

// Which element of a matrix each thread's registers hold. Threads are numbered
// 0..127 in the warpgroup for wgmma, lanes 0..31 in the warp for ldmatrix and
// stmatrix.

// accumulatorPosition is the row (of 64) and column (of N) of register i,
// 0..N/2-1, of an FP32 accumulator of wgmma. A 16-bit accumulator packs
// registers i and i+1 into one, lower half first.
func accumulatorPosition(thread, i int) (row, col int) {
	warp, lane := thread>>5, thread&31
	return 16*warp + lane>>2 + 8*(i>>1&1), 8*(i>>2) + 2*(lane&3) + i&1
}

// aPosition is the row (of 64) and k of element i, the lowest first, of register j,
// 0..3, of wgmma's A operand in registers, each of which holds per elements.
func aPosition(thread, j, i, per int) (row, k int) {
	warp, lane := thread>>5, thread&31
	return 16*warp + lane>>2 + 8*(j&1), per*(4*(j>>1)+lane&3) + i
}

// matrixPosition is the row and column, in 8x8 matrix j, of one half of a
// lane's register j, for ldmatrix and stmatrix; transposed is .trans.
func matrixPosition(lane, half int, transposed bool) (row, col int) {
	row, col = lane>>2, 2*(lane&3)+half
	if transposed {
		return col, row
	}
	return row, col
}

// matrixRowLane is the lane whose address operand gives row (0..7) of matrix j
// (0..3), for ldmatrix and stmatrix; a row is 16 bytes.
func matrixRowLane(j, row int) int { return 8*j + row }
