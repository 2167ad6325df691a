package dw

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe/internal/gradient"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// dwCase is the size of a test of the weight gradients.
type dwCase struct {
	hidden, intermediate, tokens int
	// rows has the number of rows of each expert.
	rows []int
	// split is the number of rows of a split; 0 means the default.
	split int
	// bad reports whether all rows of an expert are NaN and infinities, which must not
	// reach the other experts.
	bad func(expert int) bool
}

// everyRows are numbers of rows just below, at and above the ends of steps.
var everyRows = []int{64, 0, 1, 63, 65, 127, 1000, 128, 0}

// dwData has the inputs of a case: rows of X (or dO) by token, packed rows of dH (or A'),
// and the gradient's old values.
type dwData struct {
	offsets, gather []uint32
	x, rows         []uint16
	old             []float32
}

func (c dwCase) data(of Weight) dwData {
	width := DW{Config: spec.Config{Intermediate: c.intermediate}, Of: of}.width()
	var d dwData
	total := 0
	for _, n := range c.rows {
		d.offsets = append(d.offsets, uint32(total))
		total += n
	}
	d.offsets = append(d.offsets, uint32(total))
	d.x = reference.NewNormal(14, 1).Values(int64(2 * c.tokens * c.hidden))
	d.rows = reference.NewNormal(15, 1).Values(int64(total * width))
	for e, n := range c.rows {
		for i := range n {
			row := len(d.gather)
			token := (row*7 + i*13) % c.tokens
			if c.bad != nil && c.bad(e) {
				token += c.tokens // the tokens in the second half of x have NaN and infinities
				for j := range width {
					d.rows[row*width+j] = []uint16{0x7f80, 0x7fc0, 0xff80}[(row+j)%3]
				}
			}
			d.gather = append(d.gather, uint32(token))
		}
	}
	for i := c.tokens * c.hidden; i < len(d.x); i++ {
		d.x[i] = []uint16{0x7f80, 0x7fc0, 0xff80}[i%3]
	}
	for _, v := range reference.NewNormal(16, 20).Values(int64(len(c.rows) * c.hidden * width)) {
		d.old = append(d.old, float32(num.BF16ToFloat64(v)))
	}
	return d
}

// run returns the gradient as FP32 bits, in any format of the store.
func (c dwCase) run(b *kt.Bed, k DW, ctas, slots int) []uint32 {
	k.Hidden, k.Intermediate, k.NumExperts, k.SplitRows = c.hidden, c.intermediate, len(c.rows), c.split
	d := c.data(k.Of)
	plan := Plan{NumExperts: len(c.rows), SplitRows: c.split}
	splits, counts, tickets := b.Room(SplitBytes*plan.Splits(len(d.gather))), b.Room(8), b.Room(8)
	state := b.Room(8 * slots)
	kt.Run(b, plan, 0, PlanArgs{Offsets: kt.Upload(b, d.offsets), Splits: splits, Counts: counts, Tickets: tickets, State: state, StateWords: 2 * slots})
	out := kt.NewStored(b, k.Store, d.old)
	kt.Run(b, k, ctas, Args{
		X: kt.Upload(b, d.x), Gather: kt.Upload(b, d.gather), PackedRows: kt.Upload(b, d.rows), DW: out.At,
		Splits: splits, Counts: counts, Tickets: tickets + driver.DevicePtr(4*(1-int(k.Of))),
		Partials: b.Room(slots * k.PartialBytes()), State: state, Slots: slots, Rows: len(d.gather),
	})
	return out.Download(b)
}

// check compares the gradients of all experts that are not bad with float64.
func (c dwCase) check(t *testing.T, k DW, got []uint32) {
	d := c.data(k.Of)
	k.Hidden, k.Intermediate = c.hidden, c.intermediate
	width := k.width()
	for e, n := range c.rows {
		if c.bad != nil && c.bad(e) {
			continue
		}
		sum, size := make([]float64, c.hidden*width), make([]float64, c.hidden*width)
		for row := int(d.offsets[e]); row < int(d.offsets[e])+n; row++ {
			b := make([]float64, width)
			for j := range b {
				b[j] = num.BF16ToFloat64(d.rows[row*width+j])
			}
			for m := range c.hidden {
				a := num.BF16ToFloat64(d.x[int(d.gather[row])*c.hidden+m])
				for j, y := range b {
					sum[m*width+j] += a * y
					size[m*width+j] += math.Abs(a * y)
				}
			}
		}
		for m := range c.hidden {
			for j := range width {
				at := m*width + j
				if k.Of == W1 {
					line := k.GateUp.GateRow(j, c.intermediate)
					if j >= c.intermediate {
						line = k.GateUp.UpRow(j-c.intermediate, c.intermediate)
					}
					at = line*c.hidden + m
				}
				at += e * c.hidden * width
				ok := kt.Within(k.Store, got[at], d.old[at], sum[m*width+j], size[m*width+j]*0x1p-18)
				if n == 0 && k.Store.Accumulate {
					ok = got[at] == math.Float32bits(d.old[at])
				}
				if !ok {
					t.Fatalf("expert %d of %d rows, line %d, column %d: %g, must be %g", e, n, m, j, math.Float32frombits(got[at]), sum[m*width+j])
				}
			}
		}
	}
}

// TestDW2 checks dW2 for all row counts around the ends of steps. Infinities and
// NaN in the rows of other experts must have no effect.
func TestDW2(t *testing.T) {
	points := W1Product.Space(driver.H200())
	for i, size := range [][2]int{{128, 64}, {192, 192}, {208, 64}} {
		for parity := range 2 {
			if testing.Short() && parity == i%2 {
				continue
			}
			t.Run(fmt.Sprintf("d=%d n=%d bad=%d", size[0], size[1], parity), func(t *testing.T) {
				c := dwCase{hidden: size[0], intermediate: size[1], tokens: 90, rows: everyRows, bad: func(e int) bool { return e%2 == parity }}
				k := DW{Of: W2, Tiling: points[i%len(points)]}
				c.check(t, k, c.run(kt.New(t, kt.Early), k, 3+i, 4))
			})
		}
	}
}

func TestDW1(t *testing.T) {
	points := W1Product.Space(driver.H200())
	for i, size := range [][2]int{{128, 64}, {192, 192}, {144, 128}} {
		for j, layout := range []spec.GateUp{spec.Concatenated, spec.Interleaved} {
			if testing.Short() && j == i%2 {
				continue
			}
			t.Run(fmt.Sprintf("d=%d n=%d %v", size[0], size[1], layout), func(t *testing.T) {
				c := dwCase{hidden: size[0], intermediate: size[1], tokens: 90, rows: everyRows, bad: func(e int) bool { return e%2 == i%2 }}
				k := DW{Config: spec.Config{GateUp: layout}, Of: W1, Tiling: points[(i+1)%len(points)]}
				c.check(t, k, c.run(kt.New(t, kt.Early), k, 3+i, 4))
			})
		}
	}
}

// someRows has few rows for each expert, for the timings. With splits of 64 rows, the
// first expert has 3 splits and the last one 2.
var someRows = []int{130, 0, 3, 70}

// TestDWStores checks DW in every mode of the gradient, with and without splits.
func TestDWStores(t *testing.T) {
	for _, k := range []DW{{Of: W2}, {Of: W1}, {Of: W1, Config: spec.Config{GateUp: spec.Interleaved}}} {
		k.Tiling = gemm.Tiling{TileN: 128, Stages: 3, GroupM: 1, ClusterM: 1}
		for _, k.Store = range gradient.Modes {
			for _, split := range []int{0, 64} {
				t.Run(fmt.Sprintf("W%d %v %+v split=%d", k.Of+1, k.GateUp, k.Store, split), func(t *testing.T) {
					c := dwCase{hidden: 192, intermediate: 64, tokens: 40, rows: someRows, split: split}
					c.check(t, k, c.run(kt.New(t, kt.Early), k, 4, 1+split/32))
				})
			}
		}
	}
}

// TestDWFences checks that wgmma reads nothing that a copy wrote without a fence between
// them, in steps of 64 rows and in the last step of an expert.
func TestDWFences(t *testing.T) {
	for _, of := range []Weight{W1, W2} {
		k := DW{Of: of, Tiling: gemm.Tiling{TileN: 128, Stages: 3, GroupM: 1, ClusterM: 1}}
		c := dwCase{hidden: 128, intermediate: 64, tokens: 40, rows: someRows}
		c.check(t, k, c.run(kt.NewToCheck(t, 1), k, 2, 2))
	}
}

// TestDWPoints checks that every tiling computes the same bits under every timing,
// with any number of CTAs and slots.
func TestDWPoints(t *testing.T) {
	for _, of := range []Weight{W1, W2} {
		c := dwCase{hidden: 128 + 64*int(of), intermediate: 64 + 128*int(of), tokens: 40, rows: someRows, split: 64}
		var first []uint32
		for i, point := range append(W1Product.Space(driver.H200()), gemm.Tiling{TileN: 128, Stages: 3, GroupM: 1, ClusterM: 1}) {
			for j, when := range kt.Timings() {
				if testing.Short() && j != i%len(kt.Timings()) {
					continue // each tiling runs with one timing, alternating
				}
				t.Run(fmt.Sprintf("W%d %v %s", of+1, point, when.Name), func(t *testing.T) {
					k := DW{Of: of, Tiling: point}
					got := c.run(kt.New(t, when), k, 1+2*j, 1+i)
					if first == nil {
						c.check(t, k, got)
						first = got
					}
					require.Equal(t, first, got)
				})
			}
		}
	}
}

// TestDWWithoutRows checks that without rows, the gradient becomes zero, or keeps
// its values if gradients are added.
func TestDWWithoutRows(t *testing.T) {
	for _, store := range gradient.Modes {
		c := dwCase{hidden: 128, intermediate: 64, tokens: 1, rows: []int{0, 0, 0}}
		k := DW{Of: W1, Store: store, Tiling: W1Product.Space(driver.H200())[0]}
		c.check(t, k, c.run(kt.New(t, kt.Early), k, 2, 0))
	}
}
