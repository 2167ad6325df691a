package kernel

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
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// upCase is one size of the up-projection.
type upCase struct {
	hidden, intermediate int
	p                    *kt.Packed
}

// upResult has H and A, and the inputs of the product.
type upResult struct{ h, a, x, w []uint16 }

// weights returns W1 [E, 2n, d] in a layout. The neurons are the same in every layout.
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

// check compares H and A of concatenated weights with float64.
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
		if i != 1 && testing.Short() {
			continue // -short runs only the second case
		}
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

// TestUpPoints checks that every tiling computes the same bits under every timing.
func TestUpPoints(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
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
