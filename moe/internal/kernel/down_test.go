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
			copy(a[row*n:][:n], kt.Poisoned[uint16](n)) // NaN in rows outside the experts must not spread
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
		if i != 1 && i != 2 && testing.Short() {
			continue
		}
		t.Run(fmt.Sprintf("d=%d n=%d", size[0], size[1]), func(t *testing.T) {
			c := downCase{size[0], size[1], kt.Ragged()}
			y, a, w := c.run(kt.New(t, kt.Early), points[2*i%len(points)], 1+i)
			c.check(t, y, a, w)
		})
	}
}

func TestDownPoints(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
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
