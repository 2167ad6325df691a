package kernel

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/moe/reference"
	"sonicmoe/moe/spec"
)

// dxCase is one size of dX~.
type dxCase struct {
	hidden, intermediate int
	router               bool
	p                    *packed
}

// dxResult is dX~ and its inputs, W1 with gate and up concatenated.
type dxResult struct {
	dx, dh, w, wr []uint16
	dlrow         []float32
}

func (c dxCase) run(b *bed, point Point, layout spec.GateUp, ctas int) dxResult {
	k := DX{Hidden: c.hidden, Intermediate: c.intermediate, Router: c.router, Point: point}
	rows, n, d, experts := len(c.p.expert), c.intermediate, c.hidden, len(c.p.rows)
	r := dxResult{
		dh: reference.NewNormal(8, 1).Values(int64(rows * 2 * n)),
		wr: reference.NewNormal(9, 1).Values(int64(experts * d)),
	}
	for i := range rows {
		r.dlrow = append(r.dlrow, float32(math.Sin(float64(i))))
	}
	for row, e := range c.p.expert {
		if e < 0 {
			copy(r.dh[row*2*n:][:2*n], poisoned[uint16](2*n)) // NaN, which must not spread
			r.dlrow[row] = float32(math.NaN())
		}
	}
	weights := upCase{d, n, c.p}
	r.w = weights.weights(spec.Concatenated)
	at := b.room(2 * rows * d)
	params := c.p.schedule(b, args{
		"dh": k.DHMap(upload(b, r.dh), rows), "w1": k.W1Map(upload(b, weights.weights(layout)), experts, layout), "dx": k.DXMap(at, rows),
	})
	if c.router {
		params["dlrow"], params["wr"] = upload(b, r.dlrow), upload(b, r.wr)
	}
	b.run(k, ctas, params)
	r.dx = download[uint16](b, at, rows*d)
	return r
}

// check holds dX~ against float64.
func (c dxCase) check(t *testing.T, r dxResult) {
	n, d := 2*c.intermediate, c.hidden
	want, size := make([]float64, d), make([]float64, d)
	for row, e := range c.p.expert {
		got := r.dx[row*d:][:d]
		if e < 0 {
			require.Equal(t, poisoned[uint16](d), got, "dX~ row %d belongs to nobody", row)
			continue
		}
		clear(want)
		clear(size)
		add := func(x float64, weights []uint16) {
			for j, w := range weights[:d] {
				p := x * reference.FromBF16(w)
				want[j] += p
				size[j] += math.Abs(p)
			}
		}
		for j, x := range r.dh[row*n:][:n] {
			add(reference.FromBF16(x), r.w[(e*n+j)*d:])
		}
		if c.router {
			add(float64(r.dlrow[row]), r.wr[e*d:])
		}
		for j := range d {
			if !between(got[j], want[j], size[j]*0x1p-18) {
				t.Fatalf("row %d of expert %d, column %d: %g, must be %g", row, e, j, reference.FromBF16(got[j]), want[j])
			}
		}
	}
}

func TestDX(t *testing.T) {
	points := DXSpace(h200)
	for i, size := range [][2]int{{128, 64}, {192, 192}, {320, 128}, {448, 64}, {256, 320}} {
		t.Run(fmt.Sprintf("d=%d n=%d", size[0], size[1]), func(t *testing.T) {
			c := dxCase{size[0], size[1], i%3 != 2, ragged()}
			b, point := newBed(t, early), points[2*i%len(points)]
			first := c.run(b, point, spec.Concatenated, 1+i)
			c.check(t, first)
			other := c.run(b, point, spec.Interleaved, 3)
			require.Equal(t, first.dx, other.dx, "dX~ of interleaved weights")
		})
	}
}

// Every point gives the same bits, under every timing.
func TestDXPoints(t *testing.T) {
	for _, router := range []bool{false, true} {
		c := dxCase{192, 192, router, small()}
		var first dxResult
		for _, point := range append(DXSpace(h200), shallow(192)) {
			for _, when := range timings() {
				t.Run(fmt.Sprintf("router=%v %v %s", router, point, when.name), func(t *testing.T) {
					got := c.run(newBed(t, when), point, spec.Concatenated, 2)
					if first.dx == nil {
						c.check(t, got)
						first = got
					}
					require.Equal(t, first.dx, got.dx)
				})
			}
		}
	}
}
