package kernel

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe/reference"
	"sonicmoe/moe/spec"
)

// packed is a hand-made plan: experts with so many rows, gaps of rows that
// belong to nobody between them, and at the end.
type packed struct {
	rows, gaps []int
	tokens     int
	// table, gather and row's expert (-1 in gaps) are made from them.
	table, gather []uint32
	expert        []int
}

func newPacked(tokens int, rows, gaps []int) *packed {
	p := &packed{rows: rows, gaps: gaps, tokens: tokens}
	for e, n := range rows {
		first := len(p.expert)
		for i := range n {
			if i%schedule.PairRows == 0 {
				p.table = append(p.table, uint32(e), uint32(first+i), uint32(min(schedule.PairRows, n-i)), 0)
			}
			p.expert = append(p.expert, e)
			p.gather = append(p.gather, uint32((first*7+i*13)%tokens))
		}
		for range gaps[e%len(gaps)] {
			p.expert = append(p.expert, -1)
			p.gather = append(p.gather, poison)
		}
	}
	return p
}

// schedule adds the parameters that every product has.
func (p *packed) schedule(b *bed, a args) args {
	a["table"] = upload(b, p.table)
	a["blocks"] = upload(b, []uint32{uint32(len(p.table) / 4)})
	a["tickets"] = upload(b, []uint32{0})
	return a
}

// between is where a bf16 must lie when the FP32 sum it comes from is within
// slack of x.
func between(got uint16, x, slack float64) bool {
	g := reference.FromBF16(got)
	return g >= reference.FromBF16(reference.ToBF16(x-slack)) && g <= reference.FromBF16(reference.ToBF16(x+slack))
}

// dot is a sum in float64 and a bound on what FP32 sums of it lose.
func dot(a, b []uint16) (sum, slack float64) {
	var size float64
	for i := range a {
		p := reference.FromBF16(a[i]) * reference.FromBF16(b[i])
		sum += p
		size += math.Abs(p)
	}
	return sum, size * 0x1p-18
}

// upCase is one size of the up-projection.
type upCase struct {
	hidden, intermediate int
	p                    *packed
}

// upResult is H and A, and their inputs.
type upResult struct{ h, a, x, w []uint16 }

// weights gives W1 [E, 2n, d], the same neurons in either layout.
func (c upCase) weights(layout spec.GateUp) []uint16 {
	d, n := c.hidden, c.intermediate
	all := reference.NewNormal(3, 2/math.Sqrt(float64(d))).Values(int64(len(c.p.rows) * 2 * n * d))
	out := make([]uint16, len(all))
	for e := range c.p.rows {
		for j := range n {
			at := e * 2 * n
			copy(out[(at+layout.GateRow(j, n))*d:][:d], all[(at+j)*d:])
			copy(out[(at+layout.UpRow(j, n))*d:][:d], all[(at+n+j)*d:])
		}
	}
	return out
}

func (c upCase) run(b *bed, point Point, layout spec.GateUp, saveH bool, ctas int) upResult {
	k := Up{Hidden: c.hidden, Intermediate: c.intermediate, SaveH: saveH, Point: point}
	rows, n := len(c.p.expert), c.intermediate
	r := upResult{
		x: reference.NewNormal(4, 1).Values(int64(c.p.tokens * c.hidden)), w: c.weights(layout),
		h: poisoned[uint16](rows * 2 * n),
	}
	h, a := b.room(2*rows*2*n), b.room(2*rows*n)
	params := c.p.schedule(b, args{
		"x": upload(b, r.x), "gather": upload(b, c.p.gather),
		"w1": k.W1Map(upload(b, r.w), len(c.p.rows), layout), "a": k.AMap(a, rows),
	})
	if saveH {
		params["h"] = k.HMap(h, rows)
	}
	b.run(k, ctas, params)
	r.h, r.a = download[uint16](b, h, rows*2*n), download[uint16](b, a, rows*n)
	return r
}

// check holds H and A of concatenated weights against float64.
func (c upCase) check(t *testing.T, r upResult) {
	d, n := c.hidden, c.intermediate
	for row, e := range c.p.expert {
		h, a := r.h[row*2*n:][:2*n], r.a[row*n:][:n]
		if e < 0 {
			require.Equal(t, poisoned[uint16](2*n), h, "H row %d belongs to nobody", row)
			require.Equal(t, poisoned[uint16](n), a, "A row %d belongs to nobody", row)
			continue
		}
		x := r.x[int(c.p.gather[row])*d:][:d]
		for j := range n {
			w := r.w[e*2*n*d:]
			gate, gateSlack := dot(x, w[j*d:][:d])
			up, upSlack := dot(x, w[(n+j)*d:][:d])
			silu := gate / (1 + math.Exp(-gate))
			slack := 1.2*gateSlack*math.Abs(up) + math.Abs(silu)*upSlack + 0x1p-18*math.Abs(silu*up)
			if !between(h[j], gate, gateSlack) || !between(h[n+j], up, upSlack) || !between(a[j], silu*up, slack) {
				t.Fatalf("row %d of expert %d, neuron %d: gate %g up %g a %g, must be %g %g %g", row, e, j,
					reference.FromBF16(h[j]), reference.FromBF16(h[n+j]), reference.FromBF16(a[j]), gate, up, silu*up)
			}
		}
	}
}

// ragged are experts with every kind of end, apart from each other.
func ragged() *packed {
	return newPacked(50, []int{1, 0, 63, 64, 65, 128, 129, 193, 256, 5}, []int{3, 0, 64, 1, 0, 130, 7})
}

// small is a few rows, for the timings.
func small() *packed { return newPacked(20, []int{70, 0, 3, 130}, []int{2}) }

var h200 = driver.H200()

func TestUp(t *testing.T) {
	points := UpSpace(h200)
	for i, size := range [][2]int{{128, 64}, {192, 192}, {320, 128}, {128, 320}} {
		t.Run(fmt.Sprintf("d=%d n=%d", size[0], size[1]), func(t *testing.T) {
			c := upCase{size[0], size[1], ragged()}
			b := newBed(t, early)
			first := c.run(b, points[i%len(points)], spec.Concatenated, true, 3)
			c.check(t, first)
			other := c.run(b, points[i%len(points)], spec.Interleaved, true, 4)
			require.Equal(t, first.h, other.h, "H of interleaved weights")
			require.Equal(t, first.a, other.a, "A of interleaved weights")
			infer := c.run(b, points[i%len(points)], spec.Concatenated, false, 1)
			require.Equal(t, first.a, infer.a, "A of inference")
			require.Equal(t, poisoned[uint16](len(infer.h)), infer.h, "H is not stored")
		})
	}
}

// shallow is a point whose ring is shorter than the sums are deep, so that
// stages are used again within a tile.
func shallow(n int) Point { return Point{TileN: n, Stages: 3, Panel: 2} }

// Every point gives the same bits, under every timing.
func TestUpPoints(t *testing.T) {
	c := upCase{448, 192, small()}
	var first upResult
	for _, point := range append(UpSpace(h200), shallow(128)) {
		for _, when := range timings() {
			t.Run(fmt.Sprintf("%v %s", point, when.name), func(t *testing.T) {
				got := c.run(newBed(t, when), point, spec.Concatenated, true, 2)
				if first.h == nil {
					c.check(t, got)
					first = got
				}
				require.Equal(t, first, got)
			})
		}
	}
}

// downCase is one size of the down-projection.
type downCase struct {
	hidden, intermediate int
	p                    *packed
}

func (c downCase) run(b *bed, point Point, ctas int) (y, a, w []uint16) {
	k := Down{Hidden: c.hidden, Intermediate: c.intermediate, Point: point}
	rows, n, d := len(c.p.expert), c.intermediate, c.hidden
	a = reference.NewNormal(5, 1).Values(int64(rows * n))
	for row, e := range c.p.expert {
		if e < 0 {
			copy(a[row*n:][:n], poisoned[uint16](n)) // NaN, which must not spread
		}
	}
	w = reference.NewNormal(6, 1/math.Sqrt(float64(n))).Values(int64(len(c.p.rows) * d * n))
	at := b.room(2 * rows * d)
	b.run(k, ctas, c.p.schedule(b, args{
		"a": k.AMap(upload(b, a), rows), "w2": k.W2Map(upload(b, w), len(c.p.rows)), "y": k.YMap(at, rows),
	}))
	return download[uint16](b, at, rows*d), a, w
}

func (c downCase) check(t *testing.T, y, a, w []uint16) {
	n, d := c.intermediate, c.hidden
	for row, e := range c.p.expert {
		got := y[row*d:][:d]
		if e < 0 {
			require.Equal(t, poisoned[uint16](d), got, "Y row %d belongs to nobody", row)
			continue
		}
		for j := range d {
			want, slack := dot(a[row*n:][:n], w[(e*d+j)*n:][:n])
			if !between(got[j], want, slack) {
				t.Fatalf("row %d of expert %d, column %d: %g, must be %g", row, e, j, reference.FromBF16(got[j]), want)
			}
		}
	}
}

func TestDown(t *testing.T) {
	points := DownSpace(h200)
	for i, size := range [][2]int{{128, 64}, {192, 192}, {320, 128}, {448, 64}, {256, 320}} {
		t.Run(fmt.Sprintf("d=%d n=%d", size[0], size[1]), func(t *testing.T) {
			c := downCase{size[0], size[1], ragged()}
			y, a, w := c.run(newBed(t, early), points[2*i%len(points)], 1+i)
			c.check(t, y, a, w)
		})
	}
}

func TestDownPoints(t *testing.T) {
	c := downCase{192, 448, small()}
	var first []uint16
	for _, point := range append(DownSpace(h200), shallow(192)) {
		for _, when := range timings() {
			t.Run(fmt.Sprintf("%v %s", point, when.name), func(t *testing.T) {
				y, a, w := c.run(newBed(t, when), point, 2)
				if first == nil {
					c.check(t, y, a, w)
					first = y
				}
				require.Equal(t, first, y)
			})
		}
	}
}

// No rows at all: every CTA ends without touching anything, the table's
// stale entries included.
func TestProductsWithoutRows(t *testing.T) {
	const d, n, experts, rows = 128, 64, 3, 6
	b := newBed(t, early)
	empty := func(a args) args {
		a["table"], a["blocks"], a["tickets"] = upload(b, poisoned[uint32](4)), upload(b, []uint32{0}), upload(b, []uint32{0})
		return a
	}
	up := Up{Hidden: d, Intermediate: n, SaveH: true, Point: UpSpace(h200)[0]}
	h, a := b.room(2*rows*2*n), b.room(2*rows*n)
	b.run(up, 3, empty(args{
		"x": b.room(2 * rows * d), "gather": b.room(4 * rows), "w1": up.W1Map(b.room(2*experts*2*n*d), experts, spec.Concatenated),
		"a": up.AMap(a, rows), "h": up.HMap(h, rows),
	}))
	require.Equal(t, poisoned[uint16](rows*2*n), download[uint16](b, h, rows*2*n))
	require.Equal(t, poisoned[uint16](rows*n), download[uint16](b, a, rows*n))

	down := Down{Hidden: d, Intermediate: n, Point: DownSpace(h200)[0]}
	y := b.room(2 * rows * d)
	b.run(down, 3, empty(args{
		"a": down.AMap(a, rows), "w2": down.W2Map(b.room(2*experts*d*n), experts), "y": down.YMap(y, rows),
	}))
	require.Equal(t, poisoned[uint16](rows*d), download[uint16](b, y, rows*d))
}
