package kernel

import (
	"fmt"
	"math"
	kt "sonicmoe/moe/kernel/kerneltest"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe/num"
	"sonicmoe/moe/reference"
	"sonicmoe/moe/spec"
)

// upCase is one size of the up-projection.
type upCase struct {
	hidden, intermediate int
	p                    *kt.Packed
}

// upResult is H and A, and their inputs.
type upResult struct{ h, a, x, w []uint16 }

// weights gives W1 [E, 2n, d], the same neurons in either layout.
func (c upCase) weights(layout spec.GateUp) []uint16 {
	d, n := c.hidden, c.intermediate
	all := reference.NewNormal(3, 2/math.Sqrt(float64(d))).Values(int64(len(c.p.Rows) * 2 * n * d))
	out := make([]uint16, len(all))
	for e := range c.p.Rows {
		for j := range n {
			at := e * 2 * n
			copy(out[(at+layout.GateRow(j, n))*d:][:d], all[(at+j)*d:])
			copy(out[(at+layout.UpRow(j, n))*d:][:d], all[(at+n+j)*d:])
		}
	}
	return out
}

func (c upCase) run(b *kt.Bed, point gemm.Tiling, layout spec.GateUp, saveH bool, ctas int) upResult {
	k := Up{Config: spec.Config{Hidden: c.hidden, Intermediate: c.intermediate, NumExperts: len(c.p.Rows), GateUp: layout}, SaveH: saveH, Tiling: point}
	rows, n := len(c.p.Expert), c.intermediate
	r := upResult{
		x: reference.NewNormal(4, 1).Values(int64(c.p.Tokens * c.hidden)), w: c.weights(layout),
		h: kt.Poisoned[uint16](rows * 2 * n),
	}
	h, a := b.Room(2*rows*2*n), b.Room(2*rows*n)
	kt.Run(b, k, ctas, UpArgs{
		X: kt.Upload(b, r.x), Gather: kt.Upload(b, c.p.Gather), W1: kt.Upload(b, r.w), A: a, H: h, Rows: rows, TileArgs: c.p.Tiles(b),
	})
	r.h, r.a = kt.Download[uint16](b, h, rows*2*n), kt.Download[uint16](b, a, rows*n)
	return r
}

// check holds H and A of concatenated weights against float64.
func (c upCase) check(t *testing.T, r upResult) {
	d, n := c.hidden, c.intermediate
	for row, e := range c.p.Expert {
		h, a := r.h[row*2*n:][:2*n], r.a[row*n:][:n]
		if e < 0 {
			require.Equal(t, kt.Poisoned[uint16](2*n), h, "H row %d belongs to nobody", row)
			require.Equal(t, kt.Poisoned[uint16](n), a, "A row %d belongs to nobody", row)
			continue
		}
		x := r.x[int(c.p.Gather[row])*d:][:d]
		for j := range n {
			w := r.w[e*2*n*d:]
			gate, gateSlack := kt.Dot(x, w[j*d:][:d])
			up, upSlack := kt.Dot(x, w[(n+j)*d:][:d])
			silu := gate / (1 + math.Exp(-gate))
			slack := 1.2*gateSlack*math.Abs(up) + math.Abs(silu)*upSlack + 0x1p-18*math.Abs(silu*up)
			if !kt.Between(h[j], gate, gateSlack) || !kt.Between(h[n+j], up, upSlack) || !kt.Between(a[j], silu*up, slack) {
				t.Fatalf("row %d of expert %d, neuron %d: gate %g up %g a %g, must be %g %g %g", row, e, j,
					num.BF16ToFloat64(h[j]), num.BF16ToFloat64(h[n+j]), num.BF16ToFloat64(a[j]), gate, up, silu*up)
			}
		}
	}
}

func TestUp(t *testing.T) {
	points := UpProduct.Space(driver.H200())
	for i, size := range [][2]int{{128, 64}, {192, 192}, {320, 128}, {128, 320}} {
		t.Run(fmt.Sprintf("d=%d n=%d", size[0], size[1]), func(t *testing.T) {
			c := upCase{size[0], size[1], kt.Ragged()}
			b := kt.New(t, kt.Early)
			first := c.run(b, points[i%len(points)], spec.Concatenated, true, 3)
			c.check(t, first)
			other := c.run(b, points[i%len(points)], spec.Interleaved, true, 4)
			require.Equal(t, first.h, other.h, "H of interleaved weights")
			require.Equal(t, first.a, other.a, "A of interleaved weights")
			infer := c.run(b, points[i%len(points)], spec.Concatenated, false, 1)
			require.Equal(t, first.a, infer.a, "A of inference")
			require.Equal(t, kt.Poisoned[uint16](len(infer.h)), infer.h, "H is not stored")
		})
	}
}

// Every point gives the same bits, under every timing.
func TestUpPoints(t *testing.T) {
	c := upCase{448, 192, kt.Small()}
	var first upResult
	for _, point := range append(UpProduct.Space(driver.H200()), kt.Shallow(128)) {
		for _, when := range kt.Timings() {
			t.Run(fmt.Sprintf("%v %s", point, when.Name), func(t *testing.T) {
				got := c.run(kt.New(t, when), point, spec.Concatenated, true, 2)
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
	p                    *kt.Packed
}

func (c downCase) run(b *kt.Bed, point gemm.Tiling, ctas int) (y, a, w []uint16) {
	k := Down{Config: spec.Config{Hidden: c.hidden, Intermediate: c.intermediate, NumExperts: len(c.p.Rows)}, Tiling: point}
	rows, n, d := len(c.p.Expert), c.intermediate, c.hidden
	a = reference.NewNormal(5, 1).Values(int64(rows * n))
	for row, e := range c.p.Expert {
		if e < 0 {
			copy(a[row*n:][:n], kt.Poisoned[uint16](n)) // NaN, which must not spread
		}
	}
	w = reference.NewNormal(6, 1/math.Sqrt(float64(n))).Values(int64(len(c.p.Rows) * d * n))
	at := b.Room(2 * rows * d)
	kt.Run(b, k, ctas, DownArgs{A: kt.Upload(b, a), W2: kt.Upload(b, w), Y: at, Rows: rows, TileArgs: c.p.Tiles(b)})
	return kt.Download[uint16](b, at, rows*d), a, w
}

func (c downCase) check(t *testing.T, y, a, w []uint16) {
	n, d := c.intermediate, c.hidden
	for row, e := range c.p.Expert {
		got := y[row*d:][:d]
		if e < 0 {
			require.Equal(t, kt.Poisoned[uint16](d), got, "Y row %d belongs to nobody", row)
			continue
		}
		for j := range d {
			want, slack := kt.Dot(a[row*n:][:n], w[(e*d+j)*n:][:n])
			if !kt.Between(got[j], want, slack) {
				t.Fatalf("row %d of expert %d, column %d: %g, must be %g", row, e, j, num.BF16ToFloat64(got[j]), want)
			}
		}
	}
}

func TestDown(t *testing.T) {
	points := DownProduct.Space(driver.H200())
	for i, size := range [][2]int{{128, 64}, {192, 192}, {320, 128}, {448, 64}, {256, 320}} {
		t.Run(fmt.Sprintf("d=%d n=%d", size[0], size[1]), func(t *testing.T) {
			c := downCase{size[0], size[1], kt.Ragged()}
			y, a, w := c.run(kt.New(t, kt.Early), points[2*i%len(points)], 1+i)
			c.check(t, y, a, w)
		})
	}
}

func TestDownPoints(t *testing.T) {
	c := downCase{192, 448, kt.Small()}
	var first []uint16
	for _, point := range append(DownProduct.Space(driver.H200()), kt.Shallow(192)) {
		for _, when := range kt.Timings() {
			t.Run(fmt.Sprintf("%v %s", point, when.Name), func(t *testing.T) {
				y, a, w := c.run(kt.New(t, when), point, 2)
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
	b := kt.New(t, kt.Early)
	up := Up{Config: spec.Config{Hidden: d, Intermediate: n, NumExperts: experts}, SaveH: true, Tiling: UpProduct.Space(driver.H200())[0]}
	h, a := b.Room(2*rows*2*n), b.Room(2*rows*n)
	kt.Run(b, up, 3, UpArgs{
		X: b.Room(2 * rows * d), Gather: b.Room(4 * rows), W1: b.Room(2 * experts * 2 * n * d), A: a, H: h, Rows: rows, TileArgs: kt.NoTiles(b),
	})
	require.Equal(t, kt.Poisoned[uint16](rows*2*n), kt.Download[uint16](b, h, rows*2*n))
	require.Equal(t, kt.Poisoned[uint16](rows*n), kt.Download[uint16](b, a, rows*n))

	down := Down{Config: spec.Config{Hidden: d, Intermediate: n, NumExperts: experts}, Tiling: DownProduct.Space(driver.H200())[0]}
	y := b.Room(2 * rows * d)
	kt.Run(b, down, 3, DownArgs{A: a, W2: b.Room(2 * experts * d * n), Y: y, Rows: rows, TileArgs: kt.NoTiles(b)})
	require.Equal(t, kt.Poisoned[uint16](rows*d), kt.Download[uint16](b, y, rows*d))
}
