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

// dxCase is one size of dX~.
type dxCase struct {
	hidden, intermediate int
	router               bool
	p                    *kt.Packed
	routerF32            bool
}

// dxResult has dX~ and its inputs. Its W1 has gate and up concatenated.
type dxResult struct {
	dx, dh, w, wr []uint16
	dlrow         []float32
}

func (c dxCase) run(b *kt.Bed, point gemm.Tiling, layout spec.GateUp, ctas int) dxResult {
	k := DX{Config: spec.Config{Hidden: c.hidden, Intermediate: c.intermediate, NumExperts: len(c.p.Rows), GateUp: layout, RouterF32: c.routerF32}, Router: c.router, Tiling: point}
	rows, n, d, experts := len(c.p.Expert), c.intermediate, c.hidden, len(c.p.Rows)
	r := dxResult{
		dh: reference.NewNormal(8, 1).Values(int64(rows * 2 * n)),
		wr: reference.NewNormal(9, 1).Values(int64(experts * d)),
	}
	for i := range rows {
		r.dlrow = append(r.dlrow, float32(math.Sin(float64(i))))
	}
	for row, e := range c.p.Expert {
		if e < 0 {
			copy(r.dh[row*2*n:][:2*n], kt.Poisoned[uint16](2*n)) // NaN in rows outside the experts must not spread
			r.dlrow[row] = float32(math.NaN())
		}
	}
	weights := upCase{d, n, c.p}
	r.w = weights.weights(spec.Concatenated)
	at, wr := b.Room(2*rows*d), kt.Upload(b, r.wr)
	if c.routerF32 {
		var wide []float32
		for _, w := range r.wr {
			wide = append(wide, float32(num.BF16ToFloat64(w)))
		}
		wr = kt.Upload(b, wide)
	}
	kt.Run(b, k, ctas, DXArgs{
		DH: kt.Upload(b, r.dh), W1: kt.Upload(b, weights.weights(layout)), DX: at, DLogitByRow: kt.Upload(b, r.dlrow), RouterWeights: wr,
		Rows: rows, TileArgs: c.p.Tiles(b),
	})
	r.dx = kt.Download[uint16](b, at, rows*d)
	return r
}

// check compares dX~ with float64.
func (c dxCase) check(t *testing.T, r dxResult) {
	n, d := 2*c.intermediate, c.hidden
	want, size := make([]float64, d), make([]float64, d)
	for row, e := range c.p.Expert {
		got := r.dx[row*d:][:d]
		if e < 0 {
			require.Equal(t, kt.Poisoned[uint16](d), got, "dX~ row %d belongs to nobody", row)
			continue
		}
		clear(want)
		clear(size)
		add := func(x float64, weights []uint16) {
			for j, w := range weights[:d] {
				p := x * num.BF16ToFloat64(w)
				want[j] += p
				size[j] += math.Abs(p)
			}
		}
		for j, x := range r.dh[row*n:][:n] {
			add(num.BF16ToFloat64(x), r.w[(e*n+j)*d:])
		}
		if c.router {
			add(float64(r.dlrow[row]), r.wr[e*d:])
		}
		for j := range d {
			if !kt.Between(got[j], want[j], size[j]*0x1p-18) {
				t.Fatalf("row %d of expert %d, column %d: %g, must be %g", row, e, j, num.BF16ToFloat64(got[j]), want[j])
			}
		}
	}
}

func TestDX(t *testing.T) {
	points := DXProduct.Space(driver.H200())
	for i, size := range [][2]int{{128, 64}, {192, 192}, {320, 128}, {448, 64}, {256, 320}} {
		if i != 1 && i != 2 && testing.Short() {
			continue
		}
		t.Run(fmt.Sprintf("d=%d n=%d", size[0], size[1]), func(t *testing.T) {
			c := dxCase{hidden: size[0], intermediate: size[1], router: i%3 != 2, p: kt.Ragged()}
			b, point := kt.New(t, kt.Early), points[2*i%len(points)]
			first := c.run(b, point, spec.Concatenated, 1+i)
			c.check(t, first)
			other := c.run(b, point, spec.Interleaved, 3)
			kt.SameBits(t, first.dx, other.dx, "dX~ of interleaved weights")
		})
	}
}

// TestDXPoints checks that every tiling computes the same bits under every timing.
func TestDXPoints(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	for _, router := range []bool{false, true} {
		c := dxCase{hidden: 192, intermediate: 192, router: router, p: kt.Small()}
		var first dxResult
		for _, point := range append(DXProduct.Space(driver.H200()), kt.Shallow(192)) {
			for _, when := range kt.Timings() {
				t.Run(fmt.Sprintf("router=%v %v %s", router, point, when.Name), func(t *testing.T) {
					got := c.run(kt.New(t, when), point, spec.Concatenated, 2)
					if first.dx == nil {
						c.check(t, got)
						first = got
					}
					kt.SameBits(t, first.dx, got.dx, "dX~")
				})
			}
		}
	}
}

// TestDXLines checks DX with such a short sum over n that shared memory has the router's weights of
// several tiles at a time. It also checks that the same weights in FP32 give the same bits.
func TestDXLines(t *testing.T) {
	for i, point := range DXProduct.Space(driver.H200()) {
		for _, n := range []int{64, 128} {
			if testing.Short() && n != 64<<(i%2) {
				continue // the next tiling has this width
			}
			when := kt.Timings()[(i+n/128)%len(kt.Timings())]
			t.Run(fmt.Sprintf("%v n=%d %s", point, n, when.Name), func(t *testing.T) {
				c := dxCase{hidden: 320, intermediate: n, router: true, p: kt.Small()}
				first := c.run(kt.New(t, when), point, spec.Concatenated, 2)
				c.check(t, first)
				c.routerF32 = true
				kt.SameBits(t, first.dx, c.run(kt.New(t, when), point, spec.Concatenated, 2).dx, "dX~ of FP32 weights")
			})
		}
	}
}

// TestDXWithoutRows checks that without rows, dX~ ends without touching memory.
func TestDXWithoutRows(t *testing.T) {
	const d, n, experts, rows = 128, 64, 3, 6
	b := kt.New(t, kt.Early)
	dx := DX{Config: spec.Config{Hidden: d, Intermediate: n, NumExperts: experts, GateUp: spec.Interleaved}, Router: true, Tiling: DXProduct.Space(driver.H200())[0]}
	at := b.Room(2 * rows * d)
	kt.Run(b, dx, 3, DXArgs{
		DH: b.Room(2 * rows * 2 * n), W1: b.Room(2 * experts * 2 * n * d), DX: at,
		DLogitByRow: b.Room(4 * rows), RouterWeights: b.Room(2 * experts * d), Rows: rows, TileArgs: kt.NoTiles(b),
	})
	require.Equal(t, kt.Poisoned[uint16](rows*d), kt.Download[uint16](b, at, rows*d))
}

// TestDXOrders runs dX~ and the down-projection in random orders and looks for races, also
// between the warps that load, publish, store and multiply.
func TestDXOrders(t *testing.T) {
	seeds := 2
	if kt.Long() {
		seeds = 100
	}
	for i, point := range DXProduct.Space(driver.H200()) {
		if testing.Short() && i%3 != 0 {
			continue // TestDX runs all tilings in one order
		}
		t.Run(point.String(), func(t *testing.T) {
			c := dxCase{hidden: 192, intermediate: 64 << (i % 2), router: true, p: kt.Small()}
			c.check(t, c.run(kt.NewToCheck(t, seeds), point, spec.Concatenated, 2))
			d := downCase{192, 64 << (i % 2), c.p}
			y, a, w := d.run(kt.NewToCheck(t, seeds), point, 2)
			d.check(t, y, a, w)
		})
	}
}
