package kernel

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/moe/reference"
	"sonicmoe/moe/spec"
)

// dhCase is one size of dH.
type dhCase struct {
	hidden, intermediate int
	p                    *packed
}

// dhResult is what comes out; dhInputs what goes in.
type (
	dhResult struct {
		dh, a   []uint16
		partial []uint32
	}
	dhInputs struct {
		do, w, h []uint16
		pairs    []uint32
		scores   []float32
	}
)

func (c dhCase) inputs() dhInputs {
	rows, n, d, experts := len(c.p.expert), c.intermediate, c.hidden, len(c.p.rows)
	in := dhInputs{
		do: reference.NewNormal(4, 1).Values(int64(c.p.tokens * d)),
		w:  reference.NewNormal(6, 1/math.Sqrt(float64(d))).Values(int64(experts * d * n)),
		h:  reference.NewNormal(8, 2).Values(int64(rows * 2 * n)),
	}
	for row, e := range c.p.expert {
		in.pairs = append(in.pairs, uint32((row*37+5)%rows))
		in.scores = append(in.scores, float32(math.Sin(float64(row))))
		if e < 0 {
			copy(in.h[row*2*n:][:2*n], poisoned[uint16](2*n)) // NaN, which must not spread
			in.pairs[row] = poison
		}
	}
	return in
}

func (c dhCase) run(b *bed, point Point, ctas int) dhResult {
	k := DH{Hidden: c.hidden, Intermediate: c.intermediate, Point: point}
	rows, n := len(c.p.expert), c.intermediate
	in := c.inputs()
	dh, a, partial := b.room(2*rows*2*n), b.room(2*rows*n), b.room(4*rows*(n/64))
	b.run(k, ctas, c.p.schedule(b, args{
		"do": upload(b, in.do), "gather": upload(b, c.p.gather), "w2": k.W2Map(upload(b, in.w), len(c.p.rows)),
		"h": k.HMap(upload(b, in.h), rows), "scores": upload(b, in.scores), "pairs": upload(b, in.pairs),
		"dh": dh, "a": a, "dspart": partial,
	}))
	return dhResult{download[uint16](b, dh, rows*2*n), download[uint16](b, a, rows*n), download[uint32](b, partial, rows*(n/64))}
}

// check holds dH, A' and the score's partial gradients against float64.
func (c dhCase) check(t *testing.T, r dhResult) {
	in, n, q := c.inputs(), c.intermediate, c.intermediate/64
	for row, e := range c.p.expert {
		dh, a, partial := r.dh[row*2*n:][:2*n], r.a[row*n:][:n], r.partial[row*q:][:q]
		if e < 0 {
			require.Equal(t, poisoned[uint16](2*n), dh, "dH row %d belongs to nobody", row)
			require.Equal(t, poisoned[uint16](n), a, "A' row %d belongs to nobody", row)
			require.Equal(t, poisoned[uint32](q), partial, "dS row %d belongs to nobody", row)
			continue
		}
		grad, slack := c.row(in, row, e)
		s, h := float64(in.scores[in.pairs[row]]), in.h[row*2*n:]
		sum, sumSlack := make([]float64, q), make([]float64, q)
		for j := range n {
			gate, up := reference.FromBF16(h[j]), reference.FromBF16(h[n+j])
			sig := 1 / (1 + math.Exp(-gate))
			silu := gate * sig
			slope, slopeSize := sig+silu*(1-sig), sig+math.Abs(silu*(1-sig))
			x, y, z := s*grad[j]*up*slope, s*grad[j]*silu, s*silu*up
			xSlack := 1.2*slack[j]*math.Abs(s*up*slope) + 0x1p-18*slopeSize*math.Abs(s*grad[j]*up)
			ySlack := (1.2*slack[j] + 0x1p-18*math.Abs(grad[j])) * math.Abs(s*silu)
			if !between(dh[j], x, xSlack) || !between(dh[n+j], y, ySlack) || !between(a[j], z, 0x1p-18*math.Abs(z)) {
				t.Fatalf("row %d of expert %d, neuron %d: gate %g up %g a %g, must be %g %g %g", row, e, j,
					reference.FromBF16(dh[j]), reference.FromBF16(dh[n+j]), reference.FromBF16(a[j]), x, y, z)
			}
			sum[j/64] += grad[j] * silu * up
			sumSlack[j/64] += (1.2*slack[j] + 0x1p-18*math.Abs(grad[j])) * math.Abs(silu*up)
		}
		for i, bits := range partial {
			require.InDelta(t, sum[i], math.Float32frombits(bits), sumSlack[i], "row %d of expert %d, dS of neurons %d and on", row, e, 64*i)
		}
	}
}

// row is a row of dA' and bounds on what FP32 sums of it lose.
func (c dhCase) row(in dhInputs, row, e int) (grad, slack []float64) {
	n, d := c.intermediate, c.hidden
	grad, slack = make([]float64, n), make([]float64, n)
	for i, v := range in.do[int(c.p.gather[row])*d:][:d] {
		x := reference.FromBF16(v)
		for j, w := range in.w[(e*d+i)*n:][:n] {
			p := x * reference.FromBF16(w)
			grad[j] += p
			slack[j] += math.Abs(p) * 0x1p-18
		}
	}
	return grad, slack
}

func TestDH(t *testing.T) {
	points := DHSpace(h200)
	for i, size := range [][2]int{{128, 64}, {192, 192}, {320, 128}, {128, 320}, {128, 448}} {
		t.Run(fmt.Sprintf("d=%d n=%d", size[0], size[1]), func(t *testing.T) {
			c := dhCase{size[0], size[1], ragged()}
			c.check(t, c.run(newBed(t, early), points[2*i%len(points)], 1+i))
		})
	}
}

// Every point gives the same bits, under every timing.
func TestDHPoints(t *testing.T) {
	c := dhCase{448, 320, small()}
	var first dhResult
	for _, point := range append(DHSpace(h200), shallow(128)) {
		for _, when := range timings() {
			t.Run(fmt.Sprintf("%v %s", point, when.name), func(t *testing.T) {
				got := c.run(newBed(t, when), point, 2)
				if first.dh == nil {
					c.check(t, got)
					first = got
				}
				sameBits(t, first.dh, got.dh, "dH")
				sameBits(t, first.a, got.a, "A'")
				sameBits(t, first.partial, got.partial, "dS")
			})
		}
	}
}

// No rows at all: dH and dX~ end without touching anything.
func TestGradientsWithoutRows(t *testing.T) {
	const d, n, experts, rows = 128, 64, 3, 6
	b := newBed(t, early)
	empty := func(a args) args {
		a["table"], a["blocks"], a["tickets"] = upload(b, poisoned[uint32](4)), upload(b, []uint32{0}), upload(b, []uint32{0})
		return a
	}
	dh := DH{Hidden: d, Intermediate: n, Point: DHSpace(h200)[0]}
	gradients, a, partial := b.room(2*rows*2*n), b.room(2*rows*n), b.room(4*rows)
	b.run(dh, 3, empty(args{
		"do": b.room(2 * rows * d), "gather": b.room(4 * rows), "w2": dh.W2Map(b.room(2*experts*d*n), experts),
		"h": dh.HMap(b.room(2*rows*2*n), rows), "scores": b.room(4 * rows), "pairs": b.room(4 * rows),
		"dh": gradients, "a": a, "dspart": partial,
	}))
	require.Equal(t, poisoned[uint16](rows*2*n), download[uint16](b, gradients, rows*2*n))
	require.Equal(t, poisoned[uint16](rows*n), download[uint16](b, a, rows*n))
	require.Equal(t, poisoned[uint32](rows), download[uint32](b, partial, rows))

	dx := DX{Hidden: d, Intermediate: n, Router: true, Point: DXSpace(h200)[0]}
	at := b.room(2 * rows * d)
	b.run(dx, 3, empty(args{
		"dh": dx.DHMap(b.room(2*rows*2*n), rows), "w1": dx.W1Map(b.room(2*experts*2*n*d), experts, spec.Interleaved), "dx": dx.DXMap(at, rows),
		"dlrow": b.room(4 * rows), "wr": b.room(2 * experts * d),
	}))
	require.Equal(t, poisoned[uint16](rows*d), download[uint16](b, at, rows*d))
}
