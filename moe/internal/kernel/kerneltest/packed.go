package kerneltest

import (
	"math"

	"sonicmoe/internal/num"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/schedule"
)

// Packed is a plan made for a test: experts with the given numbers of rows, with gaps
// between them and at the end. Rows in gaps belong to no expert.
type Packed struct {
	Rows, gaps []int
	Tokens     int
	// NewPacked computes table, gather and the expert of each row (-1 in gaps).
	table, Gather []uint32
	Expert        []int
}

// NewPacked makes a plan. Several rows may have the same token.
func NewPacked(tokens int, rows, gaps []int) *Packed {
	p := &Packed{Rows: rows, gaps: gaps, Tokens: tokens}
	for e, n := range rows {
		first := len(p.Expert)
		for i := range n {
			if i%schedule.PairRows == 0 {
				p.table = append(p.table, uint32(e), uint32(first+i), uint32(min(schedule.PairRows, n-i)), 0)
			}
			p.Expert = append(p.Expert, e)
			p.Gather = append(p.Gather, uint32((first*7+i*13)%tokens))
		}
		for range gaps[e%len(gaps)] {
			p.Expert = append(p.Expert, -1)
			p.Gather = append(p.Gather, Poison)
		}
	}
	return p
}

// Tiles returns the arguments that every product has.
func (p *Packed) Tiles(b *Bed) gemm.TileArgs {
	return gemm.TileArgs{Table: Upload(b, p.table), RowPairs: Upload(b, []uint32{uint32(len(p.table) / 4)}), Tickets: Upload(b, []uint32{0})}
}

// NoTiles returns the arguments of a product without rows. The table has only poison.
func NoTiles(b *Bed) gemm.TileArgs {
	return gemm.TileArgs{Table: Upload(b, Poisoned[uint32](4)), RowPairs: Upload(b, []uint32{0}), Tickets: Upload(b, []uint32{0})}
}

// Between reports whether a bf16 value can be the rounding of an FP32 sum that is at most
// slack away from x.
func Between(got uint16, x, slack float64) bool {
	g := num.BF16ToFloat64(got)
	return g >= num.BF16ToFloat64(num.Float64ToBF16(x-slack)) && g <= num.BF16ToFloat64(num.Float64ToBF16(x+slack))
}

// Dot returns a sum of products in float64, and a bound of the error of FP32 sums of them.
func Dot(a, b []uint16) (sum, slack float64) {
	var size float64
	for i := range a {
		p := num.BF16ToFloat64(a[i]) * num.BF16ToFloat64(b[i])
		sum += p
		size += math.Abs(p)
	}
	return sum, size * 0x1p-18
}

// Ragged is a plan whose experts have last tiles of every kind, with gaps between the
// experts.
func Ragged() *Packed {
	return NewPacked(50, []int{1, 0, 63, 64, 65, 128, 129, 193, 256, 5}, []int{3, 0, 64, 1, 0, 130, 7})
}

// Small is a plan with few rows, for tests under every timing.
func Small() *Packed { return NewPacked(20, []int{70, 0, 3, 130}, []int{2}) }

// Shallow is a tiling whose ring has fewer stages than a sum has k-tiles, so that a tile
// uses stages again.
func Shallow(n int) gemm.Tiling { return gemm.Tiling{TileN: n, Stages: 3, GroupM: 2, ClusterM: 1} }
