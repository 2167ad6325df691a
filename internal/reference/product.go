package reference

// A block of weights is decoded once for all rows of a group, because with few rows the
// decoding costs as much as the products. The decoded weights and the inputs of a block fit in
// the cache of one core.
const (
	blockCols  = 32  // weight rows, which are columns of the result, that one task computes
	blockDepth = 512 // terms of each sum that one step adds
)

// group is a run of consecutive rows that are multiplied with the same weights.
type group struct {
	// first is the index of the first row, and count is the number of rows.
	first, count int
	// weights is [cols, depth] in product, [depth, cols] in transposed.
	weights tensor
}

// product returns rows · weightsᵀ for each group: out[i][c] = Σ_k rows[i][k] · weights[c, k].
// The terms of a sum are always added in the same order. A row's result therefore does not
// depend on the other rows.
func product(rows [][]float64, groups []group, cols, depth int) [][]float64 {
	out := matrix(len(rows), cols)
	blocks := (cols + blockCols - 1) / blockCols
	parallel(len(groups)*blocks, func() func(int) {
		scratch := make([]float64, blockCols*blockDepth)
		return func(task int) {
			g := groups[task/blocks]
			c0 := task % blocks * blockCols
			c1 := min(c0+blockCols, cols)
			for k0 := 0; k0 < depth; k0 += blockDepth {
				k1 := min(k0+blockDepth, depth)
				width := k1 - k0
				for c := c0; c < c1; c++ {
					g.weights.part(c*depth+k0, width).decode(scratch[(c-c0)*width:][:width])
				}
				for i := g.first; i < g.first+g.count; i += rowTile {
					last := min(i+rowTile, g.first+g.count)
					addBlock(out[i:last], rows[i:last], scratch, c0, c1, k0, k1)
				}
			}
		}
	})
	return out
}

// rowTile is the number of rows that addBlock multiplies with a weight that was loaded once.
const rowTile = 4

// addBlock adds the terms k0..k1-1 of columns c0..c1-1 to the sums of at most rowTile rows. w
// holds the decoded weights.
func addBlock(out, rows [][]float64, w []float64, c0, c1, k0, k1 int) {
	width := k1 - k0
	if len(rows) == rowTile {
		x0, x1, x2, x3 := rows[0][k0:k1], rows[1][k0:k1], rows[2][k0:k1], rows[3][k0:k1]
		c := c0
		for ; c+1 < c1; c += 2 {
			u, v := w[(c-c0)*width:][:width], w[(c+1-c0)*width:][:width]
			s := dot2x4(u, v, x0, x1, x2, x3)
			for i := range out {
				out[i][c] += s[i]
				out[i][c+1] += s[rowTile+i]
			}
		}
		if c == c1 {
			return
		}
		c0, w = c, w[(c-c0)*width:]
	}
	for i, row := range rows {
		for c := c0; c < c1; c++ {
			out[i][c] += dot(w[(c-c0)*width:][:width], row[k0:k1])
		}
	}
}

// dot2x4 returns the dot products of two weight rows with four rows: four of u, then four of v.
// Each sum runs in order.
func dot2x4(u, v, x0, x1, x2, x3 []float64) (s [2 * rowTile]float64) {
	v, x0, x1, x2, x3 = v[:len(u)], x0[:len(u)], x1[:len(u)], x2[:len(u)], x3[:len(u)]
	var u0, u1, u2, u3, v0, v1, v2, v3 float64
	for k, a := range u {
		b := v[k]
		x := x0[k]
		u0 += a * x
		v0 += b * x
		x = x1[k]
		u1 += a * x
		v1 += b * x
		x = x2[k]
		u2 += a * x
		v2 += b * x
		x = x3[k]
		u3 += a * x
		v3 += b * x
	}
	return [...]float64{u0, u1, u2, u3, v0, v1, v2, v3}
}

// dot returns a dot product, summed in order.
func dot(u, x []float64) (s float64) {
	x = x[:len(u)]
	for k, a := range u {
		s += a * x[k]
	}
	return s
}

// matrix returns a matrix of zeros. Its rows are slices of one array.
func matrix(rows, cols int) [][]float64 {
	all := make([]float64, rows*cols)
	m := make([][]float64, rows)
	for i := range m {
		m[i] = all[i*cols : (i+1)*cols : (i+1)*cols]
	}
	return m
}
