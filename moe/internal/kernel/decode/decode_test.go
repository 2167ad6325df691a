package decode_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/kernel/decode"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// plans have experts with every kind of number of rows: 0, each number of columns that wgmma
// multiplies and the numbers next to it, more rows than are multiplied at once, and more than a row
// pair has.
var plans = map[string]func() *kt.Packed{
	"few":  func() *kt.Packed { return kt.NewPacked(9, []int{1, 0, 8, 9, 3}, []int{0, 2}) },
	"many": func() *kt.Packed { return kt.NewPacked(50, []int{0, 16, 17, 33, 64, 65, 300}, []int{1, 0, 3}) },
	"widths": func() *kt.Packed {
		return kt.NewPacked(50, []int{24, 25, 48, 49, 72, 73, 80, 81, 88, 89, 96, 97, 112, 113, 128}, []int{0, 5})
	},
}

// up has the inputs of an up-projection, and the sizes of its outputs. The tests compute it with the
// kernels for small batches and with the kernels for large batches.
type up struct {
	c              spec.Config
	p              *kt.Packed
	x              []uint16
	w1, w3, b1, b3 []uint16
	scores         []float32 // one score for each row
	pairs          []uint32
	rows, hValues  int
}

func newUp(c spec.Config, p *kt.Packed) up {
	c.NumExperts = len(p.Rows)
	u := up{c: c, p: p, rows: len(p.Expert), hValues: len(p.Expert) * c.HWidth(),
		x: reference.NewNormal(4, 1).Values(int64(p.Tokens * c.Hidden))}
	for row := range u.rows { // row's score has index rows-1-row in scores
		u.scores, u.pairs = append(u.scores, float32(row%7-2)/4), append(u.pairs, uint32(u.rows-1-row))
	}
	s := c.Shapes(0)
	for i, of := range []struct {
		values *[]uint16
		shape  spec.Shape
	}{{&u.w1, s.W1}, {&u.w3, s.W3}, {&u.b1, s.B1}, {&u.b3, s.B3}} {
		*of.values = reference.NewNormal(uint64(10+i), 2/math.Sqrt(float64(c.Hidden))).Values(of.shape.Elements())
	}
	return u
}

// hasWide reports whether the kernel has a variant with wide CTAs. It has one if a stage of the ring
// holds the weights of gate and up together.
func hasWide(c spec.Config) bool {
	return !c.Activation.Gated() || c.GateUp == spec.Interleaved || !c.InOut && c.GateUp != spec.Apart
}

// decode runs the up-projection of small batches.
func (u up) decode(b *kt.Bed, keepsH, wide bool, ctas int) (h, a []uint16) {
	toH, toA := b.Room(2*u.hValues), b.Room(2*u.rows*u.c.Intermediate)
	kt.Run(b, decode.Up{Config: u.c, Wide: wide}, ctas, decode.UpArgs{X: kt.Upload(b, u.x), Gather: kt.Upload(b, u.p.Gather),
		W1: kt.Upload(b, u.w1), W3: kt.Upload(b, u.w3), B1: kt.Upload(b, u.b1), B3: kt.Upload(b, u.b3),
		Scores: kt.Upload(b, u.scores), Pairs: kt.Upload(b, u.pairs), A: toA, H: map[bool]driver.DevicePtr{true: toH}[keepsH], Rows: u.rows, TileArgs: u.p.Tiles(b)})
	return kt.Download[uint16](b, toH, u.hValues), kt.Download[uint16](b, toA, u.rows*u.c.Intermediate)
}

// prefill runs the up-projection of large batches.
func (u up) prefill(b *kt.Bed) (h, a []uint16) {
	toH, toA := b.Room(2*u.hValues), b.Room(2*u.rows*u.c.Intermediate)
	k := kernel.Up{Config: u.c, SaveH: true, Tiling: kernel.UpProduct.Space(driver.H200())[0]}
	kt.Run(b, k, 2, kernel.UpArgs{X: kt.Upload(b, u.x), Gather: kt.Upload(b, u.p.Gather),
		W1: kt.Upload(b, u.w1), W3: kt.Upload(b, u.w3), B1: kt.Upload(b, u.b1), B3: kt.Upload(b, u.b3),
		Scores: kt.Upload(b, u.scores), Pairs: kt.Upload(b, u.pairs), A: toA, H: toH, Rows: u.rows, TileArgs: u.p.Tiles(b)})
	return kt.Download[uint16](b, toH, u.hValues), kt.Download[uint16](b, toA, u.rows*u.c.Intermediate)
}

// TestUp checks that the up-projection gives the same bits as the kernel for large batches, under
// every timing and in every layout of gate and up, and that it does not write rows without an
// expert.
func TestUp(t *testing.T) {
	for name, plan := range plans {
		for i, c := range []spec.Config{
			{Hidden: 128, Intermediate: 64},
			{Hidden: 192, Intermediate: 192, GateUp: spec.Interleaved, Bias: true},
			{Hidden: 576, Intermediate: 128},
			{Hidden: 192, Intermediate: 128, GateUp: spec.Apart, Bias: true, Activation: spec.SwiGLUOAI, Alpha: 1.702, Limit: 0.7},
			{Hidden: 320, Intermediate: 128, InOut: true, Activation: spec.GeGLUTanh},
			{Hidden: 192, Intermediate: 128, InOut: true, GateUp: spec.Apart},
			{Hidden: 128, Intermediate: 128, InOut: true, Activation: spec.ReLU2, Bias: true},
			{Hidden: 192, Intermediate: 128, Activation: spec.SiLU, Bias: true},
			{Hidden: 192, Intermediate: 192, InOut: true, GateUp: spec.Interleaved, Bias: true, Activation: spec.SwiGLUOAI, Alpha: 1.702, Limit: 0.7},
			{Hidden: 128, Intermediate: 128, ScoreOnInput: true},
			{Hidden: 192, Intermediate: 64, InOut: true, GateUp: spec.Interleaved, ScoreOnInput: true},
			{Hidden: 128, Intermediate: 128, Activation: spec.SiLU, ScoreOnInput: true},
		} {
			if testing.Short() && (name != "few" || i%3 != 1) && (name != "many" || i != 2) {
				continue
			}
			t.Run(fmt.Sprintf("%s %v", name, c), func(t *testing.T) {
				u := newUp(c, plan())
				h, a := u.prefill(kt.New(t, kt.Early))
				for j, when := range kt.Timings() {
					wide := hasWide(c) && j%2 == 1
					gotH, gotA := u.decode(kt.New(t, when), true, wide, 1+(i+j)%4)
					kt.SameBits(t, h, gotH, fmt.Sprintf("H %s wide=%v", when.Name, wide))
					kt.SameBits(t, a, gotA, fmt.Sprintf("A %s wide=%v", when.Name, wide))
				}
				if name == "few" { // once more, on a device that reports each missing fence
					gotH, _ := u.decode(kt.NewToCheck(t, 1), true, false, 2)
					kt.SameBits(t, h, gotH, "H of the checked run")
				}
				gotH, gotA := u.decode(kt.New(t, kt.Early), false, false, 0)
				kt.SameBits(t, a, gotA, "A of inference")
				kt.SameBits(t, kt.Poisoned[uint16](u.hValues), gotH, "H is not stored")
			})
		}
	}
}

// TestUpWithoutGate checks an activation without a gate. Each 64 rows of weights (a unit) are then
// 64 neurons.
func TestUpWithoutGate(t *testing.T) {
	u := newUp(spec.Config{Hidden: 128, Intermediate: 192, Activation: spec.ReLU2}, plans["few"]())
	d, n := u.c.Hidden, u.c.Intermediate
	h, a := u.decode(kt.New(t, kt.Early), true, true, 3)
	for row, e := range u.p.Expert {
		if e < 0 {
			require.Equal(t, kt.Poisoned[uint16](n), h[row*n:][:n])
			continue
		}
		for j := range n {
			x, slack := kt.Dot(u.x[int(u.p.Gather[row])*d:][:d], u.w1[(e*n+j)*d:][:d])
			relu := max(x, 0)
			require.True(t, kt.Between(h[row*n+j], x, slack), "H of row %d, neuron %d", row, j)
			require.True(t, kt.Between(a[row*n+j], relu*relu, 3*slack*(relu+slack)), "A of row %d, neuron %d: %g, must be %g", row, j, num.BF16ToFloat64(a[row*n+j]), relu*relu)
		}
	}
}

// TestDown checks that the down-projection gives the same bits as the kernel for large batches.
func TestDown(t *testing.T) {
	for name, plan := range plans {
		for i, c := range []spec.Config{
			{Hidden: 128, Intermediate: 64}, {Hidden: 320, Intermediate: 576},
			{Hidden: 192, Intermediate: 64, Bias: true}, {Hidden: 192, Intermediate: 128, InOut: true, Bias: true},
		} {
			if testing.Short() && !slices.Contains(map[string][]int{"few": {2, 3}, "many": {1}, "widths": {0}}[name], i) {
				continue
			}
			t.Run(fmt.Sprintf("%s %v", name, c), func(t *testing.T) {
				p := plan()
				c.NumExperts = len(p.Rows)
				rows := len(p.Expert)
				a := reference.NewNormal(5, 1).Values(int64(rows * c.Intermediate))
				w2 := reference.NewNormal(6, 1/math.Sqrt(float64(c.Intermediate))).Values(int64(len(p.Rows) * c.Hidden * c.Intermediate))
				b2 := reference.NewNormal(7, 1).Values(int64(len(p.Rows) * c.Hidden))
				b := kt.New(t, kt.Early)
				want := b.Room(2 * rows * c.Hidden)
				kt.Run(b, kernel.Down{Config: c, Tiling: kernel.DownProduct.Space(driver.H200())[0]}, 2,
					kernel.DownArgs{A: kt.Upload(b, a), W2: kt.Upload(b, w2), B2: kt.Upload(b, b2), Y: want, Rows: rows, TileArgs: p.Tiles(b)})
				y := kt.Download[uint16](b, want, rows*c.Hidden)
				for j, when := range kt.Timings() {
					b := kt.New(t, when)
					got := b.Room(2 * rows * c.Hidden)
					kt.Run(b, decode.Down{Config: c, Wide: j%2 == 1}, 1+i+j, decode.DownArgs{A: kt.Upload(b, a), W2: kt.Upload(b, w2), B2: kt.Upload(b, b2), Y: got, Rows: rows, TileArgs: p.Tiles(b)})
					kt.SameBits(t, y, kt.Download[uint16](b, got, rows*c.Hidden), "Y "+when.Name)
				}
			})
		}
	}
}

// TestNoRows checks that without rows the kernels do not touch memory, even if the
// table has stale entries.
func TestNoRows(t *testing.T) {
	c := spec.Config{Hidden: 128, Intermediate: 64, NumExperts: 3}
	b := kt.New(t, kt.Early)
	a, y := b.Room(2*6*64), b.Room(2*6*128)
	kt.Run(b, decode.Up{Config: c}, 0, decode.UpArgs{X: b.Room(2 * 128), Gather: b.Room(4 * 6), W1: b.Room(2 * 3 * 128 * 128), A: a, Rows: 6, TileArgs: kt.NoTiles(b)})
	kt.Run(b, decode.Down{Config: c}, 0, decode.DownArgs{A: a, W2: b.Room(2 * 3 * 128 * 64), Y: y, Rows: 6, TileArgs: kt.NoTiles(b)})
	require.Equal(t, kt.Poisoned[uint16](6*128), kt.Download[uint16](b, y, 6*128))
	require.Equal(t, kt.Poisoned[uint16](6*64), kt.Download[uint16](b, a, 6*64))
}
