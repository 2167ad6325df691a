package kernel

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/moe/reference"
	"sonicmoe/moe/spec"
)

// dwCase is one size of the weight gradients.
type dwCase struct {
	hidden, intermediate, tokens int
	// rows of each expert.
	rows []int
	// split is the rows of a split; 0 means the default.
	split int
	// bad experts, if any, have NaN and infinities in all their rows, which
	// must not reach the others.
	bad func(expert int) bool
}

// everyRows are the row counts around the ends of steps.
var everyRows = []int{64, 0, 1, 63, 65, 127, 1000, 128, 0}

// dwData is a case's inputs: rows of X (or dO) by token, packed rows of dH
// (or A'), and the gradient's old values.
type dwData struct {
	offsets, gather []uint32
	x, rows         []uint16
	old             []float32
}

func (c dwCase) data(of Weight) dwData {
	width := DW{Intermediate: c.intermediate, Of: of}.width()
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
				token += c.tokens // the bad half of x
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
		d.old = append(d.old, float32(reference.FromBF16(v)))
	}
	return d
}

// run gives the gradient as FP32 bits, whatever it is stored as.
func (c dwCase) run(b *bed, k DW, ctas, slots int) []uint32 {
	k.Hidden, k.Intermediate, k.SplitRows = c.hidden, c.intermediate, c.split
	d := c.data(k.Of)
	plan := DWPlan{Experts: len(c.rows), SplitRows: c.split}
	splits, counts, tickets := b.room(SplitBytes*plan.Splits(len(d.gather))), b.room(8), b.room(8)
	state := b.room(8 * slots)
	b.run(plan, plan.CTAs(), args{
		"offsets": upload(b, d.offsets), "splits": splits, "counts": counts, "tickets": tickets, "state": state, "words": 2 * slots,
	})
	out := newStored(b, k.Store, d.old)
	rows := upload(b, d.rows)
	params := args{
		"x": upload(b, d.x), "gather": upload(b, d.gather), "rows": rows, "rowsmap": k.RowsMap(rows, len(d.gather)), "dw": out.at,
		"splits": splits, "counts": counts, "tickets": tickets + driver.DevicePtr(4*(1-int(k.Of))),
		"partials": b.room(slots * k.PartialBytes()), "state": state, "slots": slots,
	}
	if k.mapped() {
		params["dw"] = k.OutMap(out.at, len(c.rows))
	}
	b.run(k, ctas, params)
	return out.download(b)
}

// check holds the gradients of all experts that are not bad against float64.
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
				b[j] = reference.FromBF16(d.rows[row*width+j])
			}
			for m := range c.hidden {
				a := reference.FromBF16(d.x[int(d.gather[row])*c.hidden+m])
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
					line := k.Layout.GateRow(j, c.intermediate)
					if j >= c.intermediate {
						line = k.Layout.UpRow(j-c.intermediate, c.intermediate)
					}
					at = line*c.hidden + m
				}
				at += e * c.hidden * width
				ok := k.Store.within(got[at], d.old[at], sum[m*width+j], size[m*width+j]*0x1p-18)
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

// The row counts around the ends of steps, beside experts whose infinities
// and NaN must stay theirs.
func TestDW2(t *testing.T) {
	points := DWSpace(h200)
	for i, size := range [][2]int{{128, 64}, {192, 192}} {
		for parity := range 2 {
			t.Run(fmt.Sprintf("d=%d n=%d bad=%d", size[0], size[1], parity), func(t *testing.T) {
				c := dwCase{hidden: size[0], intermediate: size[1], tokens: 90, rows: everyRows, bad: func(e int) bool { return e%2 == parity }}
				k := DW{Of: W2, Point: points[i%len(points)]}
				c.check(t, k, c.run(newBed(t, early), k, 3+i, 4))
			})
		}
	}
}

func TestDW1(t *testing.T) {
	points := DWSpace(h200)
	for i, size := range [][2]int{{128, 64}, {192, 192}} {
		for _, layout := range []spec.GateUp{spec.Concatenated, spec.Interleaved} {
			t.Run(fmt.Sprintf("d=%d n=%d %v", size[0], size[1], layout), func(t *testing.T) {
				c := dwCase{hidden: size[0], intermediate: size[1], tokens: 90, rows: everyRows, bad: func(e int) bool { return e%2 == i%2 }}
				k := DW{Of: W1, Layout: layout, Point: points[(i+1)%len(points)]}
				c.check(t, k, c.run(newBed(t, early), k, 3+i, 4))
			})
		}
	}
}

// someRows are a few rows, for the timings; with splits of 64 rows the first
// and last expert have 3 and 2.
var someRows = []int{130, 0, 3, 70}

// Every way to store a gradient, with and without splits.
func TestDWStores(t *testing.T) {
	for _, k := range []DW{{Of: W2}, {Of: W1}, {Of: W1, Layout: spec.Interleaved}} {
		k.Point = Point{TileN: 128, Stages: 3, Panel: 1}
		for _, k.Store = range gradients {
			for _, split := range []int{0, 64} {
				t.Run(fmt.Sprintf("W%d %v %+v split=%d", k.Of+1, k.Layout, k.Store, split), func(t *testing.T) {
					c := dwCase{hidden: 192, intermediate: 64, tokens: 40, rows: someRows, split: split}
					c.check(t, k, c.run(newBed(t, early), k, 4, 1+split/32))
				})
			}
		}
	}
}

// Every point gives the same bits, under every timing, with however many CTAs
// and slots.
func TestDWPoints(t *testing.T) {
	for _, of := range []Weight{W1, W2} {
		c := dwCase{hidden: 128 + 64*int(of), intermediate: 64 + 128*int(of), tokens: 40, rows: someRows, split: 64}
		var first []uint32
		for i, point := range append(DWSpace(h200), Point{TileN: 128, Stages: 3, Panel: 1}) {
			for j, when := range timings() {
				t.Run(fmt.Sprintf("W%d %v %s", of+1, point, when.name), func(t *testing.T) {
					k := DW{Of: of, Point: point}
					got := c.run(newBed(t, when), k, 1+2*j, 1+i)
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

// Without any rows the gradient is zeros, or what it was.
func TestDWWithoutRows(t *testing.T) {
	for _, store := range gradients {
		c := dwCase{hidden: 128, intermediate: 64, tokens: 1, rows: []int{0, 0, 0}}
		k := DW{Of: W1, Store: store, Point: DWSpace(h200)[0]}
		c.check(t, k, c.run(newBed(t, early), k, 2, 0))
	}
}
