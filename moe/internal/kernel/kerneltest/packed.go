package kerneltest

import (
	"math"

	"sonicmoe/jit/gemm"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe/num"
)

// Packed is a hand-made plan: experts with so many rows, gaps of rows that
// belong to nobody between them, and at the end.
type Packed struct {
	Rows, gaps []int
	Tokens     int
	// table, gather and row's expert (-1 in gaps) are made from them.
	table, Gather []uint32
	Expert        []int
}

// NewPacked makes a plan; token numbers repeat.
func NewPacked(tokens int, rows, gaps []int) *Packed {
	p := &Packed{Rows: rows, gaps: gaps, Tokens: tokens}
	for e, n := range rows {
		first := len(p.Expert)
		for i := range n {
			if i%schedule.PairRows == 0 {
				p.table = append(p.table, uint32(e), uint32(first+i), uint32(min(schedule.PairRows, n-i)), ^uint32(0)) // nobody reads the last
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

// Tiles are the arguments that every product has.
func (p *Packed) Tiles(b *Bed) gemm.TileArgs {
	return gemm.TileArgs{Table: Upload(b, p.table), RowPairs: Upload(b, []uint32{uint32(len(p.table) / 4)}), Tickets: Upload(b, []uint32{0})}
}

// NoTiles are those of a product without rows, whose table has nothing but
// poison.
func NoTiles(b *Bed) gemm.TileArgs {
	return gemm.TileArgs{Table: Upload(b, Poisoned[uint32](4)), RowPairs: Upload(b, []uint32{0}), Tickets: Upload(b, []uint32{0})}
}

// Between is where a bf16 must lie when the FP32 sum it comes from is within
// slack of x.
func Between(got uint16, x, slack float64) bool {
	g := num.BF16ToFloat64(got)
	return g >= num.BF16ToFloat64(num.Float64ToBF16(x-slack)) && g <= num.BF16ToFloat64(num.Float64ToBF16(x+slack))
}

// Dot is a sum in float64 and a bound on what FP32 sums of it lose.
func Dot(a, b []uint16) (sum, slack float64) {
	var size float64
	for i := range a {
		p := num.BF16ToFloat64(a[i]) * num.BF16ToFloat64(b[i])
		sum += p
		size += math.Abs(p)
	}
	return sum, size * 0x1p-18
}

// Ragged are experts with every kind of end, apart from each other.
func Ragged() *Packed {
	return NewPacked(50, []int{1, 0, 63, 64, 65, 128, 129, 193, 256, 5}, []int{3, 0, 64, 1, 0, 130, 7})
}

// Small is a few rows, for the timings.
func Small() *Packed { return NewPacked(20, []int{70, 0, 3, 130}, []int{2}) }

// Shallow is a tiling whose ring is shorter than the sums are deep, so that
// stages are used again within a tile.
func Shallow(n int) gemm.Tiling { return gemm.Tiling{TileN: n, Stages: 3, GroupM: 2, ClusterM: 1} }
