package reference

// transposedCols is the number of columns that one task of transposed computes. The sums of a
// row then fit in the first-level cache.
const transposedCols = 256

// axpyRows is the number of matrix rows that axpy adds to a sum at a time.
const axpyRows = 4

// transposed returns rows · weights for each group: out[i][c] = Σ_k rows[i][k] · weights[k, c].
// The weights of a group are [depth, cols]. The terms of a sum are added in the order of k.
func transposed(rows [][]float64, groups []group, depth, cols int) [][]float64 {
	out := matrix(len(rows), cols)
	blocks := (cols + transposedCols - 1) / transposedCols
	parallel(len(groups)*blocks, func() func(int) {
		scratch := matrix(axpyRows, min(cols, transposedCols))
		return func(task int) {
			g := groups[task/blocks]
			c0 := task % blocks * transposedCols
			c1 := min(c0+transposedCols, cols)
			for k := 0; k < depth; k += axpyRows {
				n := min(axpyRows, depth-k)
				for j := range n {
					g.weights.part((k+j)*cols+c0, c1-c0).decode(scratch[j][:c1-c0])
				}
				for i := g.first; i < g.first+g.count; i++ {
					axpy(out[i][c0:c1], rows[i][k:k+n], scratch[:n])
				}
			}
		}
	})
	return out
}

// axpy adds Σ_j a[j]·x[j] to the row sum, term by term in the order of j.
func axpy(sum, a []float64, x [][]float64) {
	if len(a) != axpyRows {
		for j, f := range a {
			for c, v := range x[j][:len(sum)] {
				sum[c] += f * v
			}
		}
		return
	}
	a0, a1, a2, a3 := a[0], a[1], a[2], a[3]
	x0, x1, x2, x3 := x[0][:len(sum)], x[1][:len(sum)], x[2][:len(sum)], x[3][:len(sum)]
	for c, s := range sum {
		s += a0 * x0[c]
		s += a1 * x1[c]
		s += a2 * x2[c]
		s += a3 * x3[c]
		sum[c] = s
	}
}
