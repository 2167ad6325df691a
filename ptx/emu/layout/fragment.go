package layout

// This file maps the registers of a thread to matrix elements. For wgmma, threads are numbered 0 to
// 127 in the warpgroup; for ldmatrix and stmatrix, lanes are numbered 0 to 31 in the warp.

// AccumulatorPosition returns the row (of 64) and column (of N) of register i of a wgmma's FP32
// accumulator. i is 0 to N/2-1. A 16-bit accumulator packs the values of registers i and i+1 into
// one register, the lower half first.
func AccumulatorPosition(thread, i int) (row, col int) {
	warp, lane := thread>>5, thread&31
	return 16*warp + lane>>2 + 8*(i>>1&1), 8*(i>>2) + 2*(lane&3) + i&1
}

// APosition returns the row (of 64) and k of an element of wgmma's A in registers. The element is
// number i (from the low bits) of register j (0 to 3). Each register holds `per` elements.
func APosition(thread, j, i, per int) (row, k int) {
	warp, lane := thread>>5, thread&31
	return 16*warp + lane>>2 + 8*(j&1), per*(4*(j>>1)+lane&3) + i
}

// MatrixPosition returns the row and column, in an 8x8 matrix, of one half of a lane's register
// after ldmatrix or before stmatrix. transposed states that the instruction has .trans.
func MatrixPosition(lane, half int, transposed bool) (row, col int) {
	row, col = lane>>2, 2*(lane&3)+half
	if transposed {
		return col, row
	}
	return row, col
}

// MatrixRowLane returns the lane whose address operand names a row (0 to 7) of matrix j (0 to 3),
// for ldmatrix and stmatrix. A row has 16 bytes.
func MatrixRowLane(j, row int) int { return 8*j + row }
