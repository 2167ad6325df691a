package decode_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/moe/internal/kernel/decode"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/weights"
)

// quantised has a matrix of packed weights twice: in the layout of package fragments (units), and
// as one tensor of 16-bit values for each tensor of codes.
type quantised struct {
	units []byte
	plain [][]uint16
}

// quantise returns random packed weights for a matrix. rows has the number of rows of each of its
// tensors. The parameter to is the type of the layer.
func quantise(t *testing.T, m fragments.Matrix, to spec.Type, seed uint64, rows []int, columns int) (q quantised) {
	r := rand.New(rand.NewPCG(seed, 7))
	tensors := m.Unpack(make([]byte, m.Bytes()))
	for i, of := range tensors {
		for j := range of.Codes {
			if of.Codes[j] = byte(r.Uint32()); m.Code == spec.E4M3 {
				of.Codes[j] &= 0xbf // values below 2
			}
		}
		for j := range of.Zeros {
			of.Zeros[j] = byte(r.IntN(16))
		}
		for j := 0; j < len(of.Global); j += 4 {
			binary.LittleEndian.PutUint32(of.Global[j:], math.Float32bits(1e-4*(1+r.Float32())))
		}
		high := map[spec.Scale]int{spec.ScaleBF16: 0x3c, spec.ScaleF16: 0x20} // upper byte of a scale
		for j := range of.Scales {
			if of.Scales[j] = byte(119 + r.IntN(5)); high[m.Scale] > 0 && j%2 == 1 {
				of.Scales[j] = byte(high[m.Scale] + r.IntN(2)<<7) // scales of both signs
			}
		}
		for j := 0; m.Scale == spec.ScaleF32 && j < len(of.Scales); j += 4 {
			binary.LittleEndian.PutUint32(of.Scales[j:], math.Float32bits(r.Float32()/64))
		}
		q.plain = append(q.plain, packed.Bits(m.Packing, of, to, rows[i], columns))
	}
	var err error
	q.units, err = m.Pack(tensors)
	require.NoError(t, err)
	return q
}

// plainOf returns the layer with plain weights in place of packed ones.
func plainOf(c spec.Config) spec.Config {
	c.Weights = ""
	return c
}

// packedPlans have experts with every kind of number of rows for the shapes of packed weights.
var packedPlans = map[string]func() *kt.Packed{
	"few":  plans["few"],
	"many": plans["many"],
	"widths": func() *kt.Packed {
		return kt.NewPacked(50, []int{8, 9, 17, 25, 33, 41, 49, 64, 65, 80, 81, 96, 97, 129}, []int{0, 5})
	},
}

// TestPackedUp checks that the up-projection of packed weights gives the bits of the up-projection
// of plain weights, if the plain weights are the bf16 values of the packed ones. It checks every
// format, shape and order of gate and up.
func TestPackedUp(t *testing.T) {
	for i, c := range []spec.Config{
		{Hidden: 256, Intermediate: 64, Weights: "mxfp4"},
		{Hidden: 320, Intermediate: 160, GateUp: spec.Interleaved, Bias: true, Weights: "mxfp4"},
		{Hidden: 128, Intermediate: 192, GateUp: spec.Apart, Bias: true, Activation: spec.SwiGLUOAI, Alpha: 1.702, Limit: 0.7, Weights: "fp8"},
		{Hidden: 416, Intermediate: 128, Activation: spec.ReLU2, Bias: true, Weights: "fp8-ue8m0"},
		{Hidden: 448, Intermediate: 96, ScoreOnInput: true, Weights: "mxfp4"},
		{Hidden: 320, Intermediate: 320, Weights: "fp8"},
		{Hidden: 320, Intermediate: 96, GateUp: spec.Interleaved, Weights: "int4-g32"},
		{Hidden: 256, Intermediate: 128, GateUp: spec.Apart, Bias: true, Weights: "int4-g128"},
		{Hidden: 208, Intermediate: 144, Weights: "fp8-tensor"},
		{Hidden: 208, Intermediate: 112, GateUp: spec.Apart, Weights: "nvfp4"},
		{Hidden: 352, Intermediate: 96, Bias: true, Weights: "uint4-g32"},
		{Hidden: 256, Intermediate: 128, GateUp: spec.Interleaved, Weights: "uint4-g128-f16"},
	} {
		for name, plan := range packedPlans {
			if testing.Short() && (name != "few" || i%3 != 1) && (name != "many" || i != 2) {
				continue
			}
			t.Run(fmt.Sprintf("%s %v", name, c), func(t *testing.T) {
				u := newUp(plainOf(c), plan())
				c.NumExperts = u.c.NumExperts
				rows := []int{c.HWidth()}
				if c.GateUp == spec.Apart {
					rows = []int{c.Intermediate, c.Intermediate}
				}
				q := quantise(t, fragments.W1(c), c.Type, 3, rows, c.Hidden)
				u.w1 = q.plain[0]
				if len(q.plain) == 2 {
					u.w3 = q.plain[1]
				}
				run := func(b *kt.Bed, up decode.Up, w1 driver.DevicePtr, ctas int) (h, a []uint16) {
					width := (c.Intermediate + 63) / 64 * 64
					toH, toA := b.Room(2*u.hValues), b.Room(2*u.rows*width)
					kt.Run(b, up, ctas, decode.UpArgs{X: kt.Upload(b, u.x), Gather: kt.Upload(b, u.p.Gather), W1: w1, W3: kt.Upload(b, u.w3), B1: kt.Upload(b, u.b1), B3: kt.Upload(b, u.b3),
						Scores: kt.Upload(b, u.scores), Pairs: kt.Upload(b, u.pairs), A: toA, H: toH, Rows: u.rows, TileArgs: u.p.Tiles(b)})
					return kt.Download[uint16](b, toH, u.hValues), kt.Download[uint16](b, toA, u.rows*width)
				}
				b := kt.New(t, kt.Early)
				h, a := run(b, decode.Up{Config: u.c}, kt.Upload(b, u.w1), 3)
				for j, when := range kt.Timings() {
					b, shape := kt.New(t, when), (i+j)%4
					gotH, gotA := run(b, decode.Up{Config: c, Wide: shape == 1, Few: shape == 2, Mid: shape == 3, Units: true}, kt.Upload(b, q.units), 1+(i+j)%4)
					kt.SameBits(t, h, gotH, fmt.Sprintf("H %s shape %d", when.Name, shape))
					kt.SameBits(t, a, gotA, fmt.Sprintf("A %s shape %d", when.Name, shape))
				}
				if name == "few" { // once more, on a device that reports each missing fence
					b := kt.NewToCheck(t, 1)
					gotH, _ := run(b, decode.Up{Config: c, Mid: i%2 == 1, Units: true}, kt.Upload(b, q.units), 2)
					kt.SameBits(t, h, gotH, "H of the checked run")
				}
			})
		}
	}
}

// TestPackedDown checks that the down-projection of packed weights gives the bits of the
// down-projection of plain weights, if the plain weights are the bf16 values of the packed ones.
func TestPackedDown(t *testing.T) {
	for i, c := range []spec.Config{
		{Hidden: 128, Intermediate: 64, Weights: "mxfp4"},
		{Hidden: 352, Intermediate: 576, Bias: true, Weights: "mxfp4"},
		{Hidden: 192, Intermediate: 192, Weights: "fp8"},
		{Hidden: 256, Intermediate: 320, Bias: true, Weights: "fp8-ue8m0"},
		{Hidden: 192, Intermediate: 416, Bias: true, Weights: "int4-g32"},
		{Hidden: 128, Intermediate: 256, Weights: "int4-g128"},
		{Hidden: 192, Intermediate: 208, Weights: "fp8-tensor"},
		{Hidden: 192, Intermediate: 208, Bias: true, Weights: "nvfp4"},
		{Hidden: 128, Intermediate: 256, Weights: "uint4-g128"},
		{Hidden: 192, Intermediate: 352, Weights: "uint4-g32-f16"},
	} {
		for name, plan := range packedPlans {
			if testing.Short() && (name != "few" || i != 1) && (name != "many" || i != 2) {
				continue
			}
			t.Run(fmt.Sprintf("%s %v", name, c), func(t *testing.T) {
				p := plan()
				c.NumExperts = len(p.Rows)
				rows, width := len(p.Expert), (c.Intermediate+63)/64*64
				q := quantise(t, fragments.W2(c), c.Type, 4, []int{c.Hidden}, c.Intermediate)
				a := reference.NewNormal(5, 1).Values(int64(rows * width))
				for i := range a { // fills the whole rows, with their padding
					if i%width >= c.Intermediate {
						a[i] = 0
					}
				}
				b2 := reference.NewNormal(7, 1).Values(int64(c.NumExperts * c.Hidden))
				run := func(b *kt.Bed, down decode.Down, w2 driver.DevicePtr, ctas int) []uint16 {
					y := b.Room(2 * rows * c.Hidden)
					kt.Run(b, down, ctas, decode.DownArgs{A: kt.Upload(b, a), W2: w2, B2: kt.Upload(b, b2), Y: y, Rows: rows, TileArgs: p.Tiles(b)})
					return kt.Download[uint16](b, y, rows*c.Hidden)
				}
				b := kt.New(t, kt.Early)
				want := run(b, decode.Down{Config: plainOf(c)}, kt.Upload(b, q.plain[0]), 2)
				for j, when := range kt.Timings() {
					b, shape := kt.New(t, when), (i+j)%4
					kt.SameBits(t, want, run(b, decode.Down{Config: c, Wide: shape == 1, Few: shape == 2, Mid: shape == 3, Units: true}, kt.Upload(b, q.units), 1+i+j), "Y "+when.Name)
				}
			})
		}
	}
}

// TestProgress runs the down-projection of packed weights during the up-projection. Its bits must be those
// of a down-projection that starts after the up-projection. The test also detects races between the two,
// and a count that differs from the expected one, for which the down-projection would wait forever.
func TestProgress(t *testing.T) {
	c := spec.Config{Hidden: 320, Intermediate: 160, Weights: "int4-g32"}
	for name, plan := range packedPlans {
		if testing.Short() && name != "few" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			u := newUp(plainOf(c), plan())
			c := c
			c.NumExperts = u.c.NumExperts
			w1, w2 := quantise(t, fragments.W1(c), c.Type, 3, []int{c.HWidth()}, c.Hidden), quantise(t, fragments.W2(c), c.Type, 4, []int{c.Hidden}, c.Intermediate)
			run := func(b *kt.Bed, apart bool) []uint16 {
				a, y := b.Room(2*u.rows*weights.A(c).Elements()), b.Room(2*u.rows*c.Hidden)
				first := decode.UpArgs{X: kt.Upload(b, u.x), Gather: kt.Upload(b, u.p.Gather), W1: kt.Upload(b, w1.units), A: a, Rows: u.rows, TileArgs: u.p.Tiles(b)}
				second := decode.DownArgs{A: a, W2: kt.Upload(b, w2.units), Y: y, Rows: u.rows, TileArgs: first.TileArgs, Progress: first.Table}
				second.Tickets = kt.Upload(b, []uint32{0})
				kt.Queue(b, decode.Up{Config: c, Units: true, Few: true}, 3, first)
				if apart {
					second.Progress = 0
					require.NoError(t, b.Stream.Synchronize(t.Context()))
				}
				kt.Run(b, decode.Down{Config: c, Units: true, Few: true}, 2, second)
				return kt.Download[uint16](b, y, u.rows*c.Hidden)
			}
			want := run(kt.New(t, kt.Early), true)
			for _, when := range kt.Timings() {
				kt.SameBits(t, want, run(kt.New(t, when), false), "Y "+when.Name)
			}
		})
	}
}
