package gemm_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// split is a kernel that computes C = A·B in one CTA, with A [rows, depth] in FP32 and B [depth,
// TwoTermN] in bf16.
type split struct {
	depth   int
	rounded bool
}

type splitArgs struct {
	A, B, C driver.DevicePtr
	Rows    int
}

func (s split) build() (*jit.Kernel[splitArgs], error) {
	k := jit.NewBuilder[splitArgs]("split", gemm.Threads, 1)
	a, c, rows := k.Ptr(&k.Args.A), k.Ptr(&k.Args.C), k.U32(&k.Args.Rows)
	atoms := tile.Atoms{Width: gemm.TwoTermN, Columns: gemm.TwoTermN}
	b := k.Map(&k.Args.B, func(a *splitArgs) gpu.TensorMap { return atoms.Map(a.B, s.depth) })
	p := gemm.TwoTerm{K: k.Kernel, Element: tile.BF16, Thread: k.TidX(), Rounded: s.rounded, B: b, Atoms: atoms}.Start()
	all := gemm.TwoTermTile{Column: ptx.Uint(0), First: ptx.Uint(0), Steps: ptx.Uint(s.depth / tile.K),
		HasLines: func(wg ptx.U32) ptx.Pred { return wg.MulI(gemm.WarpgroupM).Lt(rows) }}
	filler := func() gemm.Filler { return &rowFiller{s, p, a, rows} }
	p.Run(all, filler, func(wg ptx.U32, acc []ptx.F32) {
		f := tile.NewFragment(p.InRole())
		for h := range 2 {
			row := wg.MulI(gemm.WarpgroupM).Add(f.Row).AddI(8 * h)
			k.If(row.Lt(rows), func() {
				for j := range gemm.TwoTermN / 8 {
					ptx.StGlobal(c.Index(row, 4*gemm.TwoTermN).Index(f.Column.AddI(8*j), 4), acc[4*j+2*h], acc[4*j+2*h+1])
				}
			})
		}
	})
	return k.Build()
}

// rowFiller writes both terms of A. Each thread of the load role writes one row.
type rowFiller struct {
	split
	p    *gemm.TwoTerm
	a    ptx.Global
	rows ptx.U32
}

func (f *rowFiller) Fill(kt ptx.U32, stage func() ptx.Shared) {
	row := f.p.InRole()
	there := row.Lt(f.rows)
	to := stage()
	for chunk := range tile.K / 8 {
		v := f.p.LoadEight(f.a, row, kt.MulI(tile.K).AddI(8*chunk), f.depth, there)
		f.p.StoreEight(to.Plus(tile.Swizzled(row, ptx.Uint(chunk))), v)
	}
}

// TestTwoTerm checks the accuracy of sums against float64: two bf16 terms hold 16 bits of A's
// fraction. With Rounded, the sums must equal the sums of A rounded to bf16. The cases use stages
// of the ring more than once, with and without rows for the second warpgroup.
func TestTwoTerm(t *testing.T) {
	for i, rows := range []int{100, 64, 1, 100} {
		s := split{depth: 5 * tile.K, rounded: i == 3}
		rng := rand.New(rand.NewPCG(3, uint64(rows)))
		a, b := make([]float32, rows*s.depth), whole(rng, s.depth*gemm.TwoTermN)
		for i := range a {
			a[i] = float32(rng.NormFloat64())
		}
		k, err := s.build()
		require.NoError(t, err)
		var first []float32
		for _, when := range timings {
			bed := newBed(t, when)
			c := bed.room(4 * 128 * gemm.TwoTermN)
			launch(bed, k, 1, splitArgs{A: upload(bed, a), B: upload(bed, b), C: c, Rows: rows})
			got := download[float32](bed, c, 128*gemm.TwoTermN)
			for i, v := range got {
				row, column := i/gemm.TwoTermN, i%gemm.TwoTermN
				if row >= rows {
					require.Equal(t, uint32(poison32), math.Float32bits(v), "row %d is past the last row and must not be written", row)
					continue
				}
				var sum, size float64
				for d := range s.depth {
					x := float64(a[row*s.depth+d])
					if s.rounded {
						bits := math.Float32bits(a[row*s.depth+d])
						x = float(uint16((bits + 0x7fff + bits>>16&1) >> 16))
					}
					x *= float(b[d*gemm.TwoTermN+column])
					sum += x
					size += math.Abs(x)
				}
				if math.Abs(float64(v)-sum) > size*0x1p-16 {
					t.Fatalf("%d rows, row %d, column %d is %v, must be %v", rows, row, column, v, sum)
				}
			}
			if first == nil {
				first = got
			}
			for i := range got {
				if want, got := math.Float32bits(first[i]), math.Float32bits(got[i]); got != want {
					require.Equal(t, want, got, "%s, element %d", when.name, i)
				}
			}
		}
	}
}
