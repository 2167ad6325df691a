package dh

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/weights"
)

// dhCase is one size of dH.
type dhCase struct {
	hidden, intermediate int
	p                    *kt.Packed
}

// dhResult has the outputs of a run, and dhInputs has the inputs.
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
	rows, n, d, experts := len(c.p.Expert), c.intermediate, c.hidden, len(c.p.Rows)
	in := dhInputs{
		do: reference.NewNormal(4, 1).Values(int64(c.p.Tokens * d)),
		w:  reference.NewNormal(6, 1/math.Sqrt(float64(d))).Values(int64(experts * d * n)),
		h:  reference.NewNormal(8, 2).Values(int64(rows * 2 * n)),
	}
	for row, e := range c.p.Expert {
		in.pairs = append(in.pairs, uint32((row*37+5)%rows))
		in.scores = append(in.scores, float32(math.Sin(float64(row))))
		if e < 0 {
			copy(in.h[row*2*n:][:2*n], kt.Poisoned[uint16](2*n)) // NaN in rows outside the experts must not spread
			in.pairs[row] = kt.Poison
		}
	}
	return in
}

func (c dhCase) run(b *kt.Bed, point gemm.Tiling, ctas int) dhResult {
	k := DH{Config: spec.Config{Hidden: c.hidden, Intermediate: c.intermediate, NumExperts: len(c.p.Rows)}, Tiling: point}
	rows, n := len(c.p.Expert), c.intermediate
	in := c.inputs()
	dh, a, partial := b.Room(2*rows*2*n), b.Room(2*rows*n), b.Room(4*rows*(n/64))
	kt.Run(b, k, ctas, Args{
		DO: kt.Upload(b, in.do), Gather: kt.Upload(b, c.p.Gather), W2: kt.Upload(b, in.w), H: kt.Upload(b, in.h), DH: dh, A: a,
		Scores: kt.Upload(b, in.scores), Pairs: kt.Upload(b, in.pairs), DScorePartials: partial, Rows: rows, TileArgs: c.p.Tiles(b),
	})
	return dhResult{kt.Download[uint16](b, dh, rows*2*n), kt.Download[uint16](b, a, rows*n), kt.Download[uint32](b, partial, rows*(n/64))}
}

// check compares dH, A' and the score's partial gradients with float64.
func (c dhCase) check(t *testing.T, r dhResult) {
	in, n, q := c.inputs(), c.intermediate, c.intermediate/64
	for row, e := range c.p.Expert {
		dh, a, partial := r.dh[row*2*n:][:2*n], r.a[row*n:][:n], r.partial[row*q:][:q]
		if e < 0 {
			require.Equal(t, kt.Poisoned[uint16](2*n), dh, "dH row %d belongs to nobody", row)
			require.Equal(t, kt.Poisoned[uint16](n), a, "A' row %d belongs to nobody", row)
			require.Equal(t, kt.Poisoned[uint32](q), partial, "dS row %d belongs to nobody", row)
			continue
		}
		grad, slack := c.row(in, row, e)
		s, h := float64(in.scores[in.pairs[row]]), in.h[row*2*n:]
		sum, sumSlack := make([]float64, q), make([]float64, q)
		for j := range n {
			gate, up := num.BF16ToFloat64(h[j]), num.BF16ToFloat64(h[n+j])
			sig := 1 / (1 + math.Exp(-gate))
			silu := gate * sig
			slope, slopeSize := sig+silu*(1-sig), sig+math.Abs(silu*(1-sig))
			x, y, z := s*grad[j]*up*slope, s*grad[j]*silu, s*silu*up
			xSlack := 1.2*slack[j]*math.Abs(s*up*slope) + 0x1p-18*slopeSize*math.Abs(s*grad[j]*up)
			ySlack := (1.2*slack[j] + 0x1p-18*math.Abs(grad[j])) * math.Abs(s*silu)
			if !kt.Between(dh[j], x, xSlack) || !kt.Between(dh[n+j], y, ySlack) || !kt.Between(a[j], z, 0x1p-18*math.Abs(z)) {
				t.Fatalf("row %d of expert %d, neuron %d: gate %g up %g a %g, must be %g %g %g", row, e, j,
					num.BF16ToFloat64(dh[j]), num.BF16ToFloat64(dh[n+j]), num.BF16ToFloat64(a[j]), x, y, z)
			}
			sum[j/64] += grad[j] * silu * up
			sumSlack[j/64] += (1.2*slack[j] + 0x1p-18*math.Abs(grad[j])) * math.Abs(silu*up)
		}
		for i, bits := range partial {
			require.InDelta(t, sum[i], math.Float32frombits(bits), sumSlack[i], "row %d of expert %d, dS of neurons %d and on", row, e, 64*i)
		}
	}
}

// row returns a row of dA', and bounds of the error of its FP32 sums.
func (c dhCase) row(in dhInputs, row, e int) (grad, slack []float64) {
	n, d := c.intermediate, c.hidden
	grad, slack = make([]float64, n), make([]float64, n)
	for i, v := range in.do[int(c.p.Gather[row])*d:][:d] {
		x := num.BF16ToFloat64(v)
		for j, w := range in.w[(e*d+i)*n:][:n] {
			p := x * num.BF16ToFloat64(w)
			grad[j] += p
			slack[j] += math.Abs(p) * 0x1p-18
		}
	}
	return grad, slack
}

func TestDH(t *testing.T) {
	points := Product.Space(driver.H200())
	for i, size := range [][2]int{{128, 64}, {192, 192}, {320, 128}, {128, 320}, {128, 448}} {
		t.Run(fmt.Sprintf("d=%d n=%d", size[0], size[1]), func(t *testing.T) {
			c := dhCase{size[0], size[1], kt.Ragged()}
			c.check(t, c.run(kt.New(t, kt.Early), points[2*i%len(points)], 1+i))
		})
	}
}

// TestDHPoints checks that every tiling computes the same bits under every timing.
func TestDHPoints(t *testing.T) {
	c := dhCase{448, 320, kt.Small()}
	var first dhResult
	for i, point := range append(Product.Space(driver.H200()), kt.Shallow(128)) {
		for j, when := range kt.Timings() {
			if testing.Short() && j != i%len(kt.Timings()) {
				continue // -short runs each tiling with one timing; the timings alternate
			}
			t.Run(fmt.Sprintf("%v %s", point, when.Name), func(t *testing.T) {
				got := c.run(kt.New(t, when), point, 2)
				if first.dh == nil {
					c.check(t, got)
					first = got
				}
				kt.SameBits(t, first.dh, got.dh, "dH")
				kt.SameBits(t, first.a, got.a, "A'")
				kt.SameBits(t, first.partial, got.partial, "dS")
			})
		}
	}
}

// TestWithoutRows checks that without rows, dH ends without touching memory.
func TestWithoutRows(t *testing.T) {
	const d, n, experts, rows = 128, 64, 3, 6
	b := kt.New(t, kt.Early)
	dh := DH{Config: spec.Config{Hidden: d, Intermediate: n, NumExperts: experts}, Tiling: Product.Space(driver.H200())[0]}
	gradients, a, partial := b.Room(2*rows*2*n), b.Room(2*rows*n), b.Room(4*rows)
	kt.Run(b, dh, 3, Args{
		DO: b.Room(2 * rows * d), Gather: b.Room(4 * rows), W2: b.Room(2 * experts * d * n), H: b.Room(2 * rows * 2 * n), DH: gradients, A: a,
		Scores: b.Room(4 * rows), Pairs: b.Room(4 * rows), DScorePartials: partial, Rows: rows, TileArgs: kt.NoTiles(b),
	})
	require.Equal(t, kt.Poisoned[uint16](rows*2*n), kt.Download[uint16](b, gradients, rows*2*n))
	require.Equal(t, kt.Poisoned[uint16](rows*n), kt.Download[uint16](b, a, rows*n))
	require.Equal(t, kt.Poisoned[uint32](rows), kt.Download[uint32](b, partial, rows))
}

// TestRefusals checks that a tiling that the kernel cannot have is an error with
// the wrong number and the right one.
func TestRefusals(t *testing.T) {
	good := DH{Config: spec.Config{Hidden: 256, Intermediate: 128, NumExperts: 4, TopK: 2}, Tiling: kt.Shallow(128)}
	_, err := good.Build()
	require.NoError(t, err)
	odd := good
	odd.Tiling.TileN = 192
	_, err = odd.Build()
	require.ErrorContains(t, err, "moe_dh: tiling 128x192")
	require.ErrorContains(t, err, "TileN must be a multiple of 128, for its slots' parity")
	cluster := good
	cluster.Tiling.TileN, cluster.Tiling.ClusterM = 192, 2
	_, err = cluster.Build()
	require.ErrorContains(t, err, "TileN must be a multiple of 64 for each CTA of the cluster")
}

// TestColumnSums checks that in layers with biases, the columns of the rounded dH
// are summed over each 64 rows of an expert. Rows past the expert's end add
// nothing, even if they are NaN.
func TestColumnSums(t *testing.T) {
	for i, config := range []spec.Config{
		{Intermediate: 80}, {Intermediate: 144, InOut: true, GateUp: spec.Interleaved}, {}, {Type: spec.F16}, {Activation: spec.ReLU2}, {InOut: true, GateUp: spec.Interleaved, Activation: spec.SwiGLUOAI, Alpha: 1.702, Limit: 7},
	} {
		if testing.Short() && i != 1 && i < 3 {
			continue // -short leaves out uneven sizes, fp16, layers without a gate, and clamped pairs
		}
		t.Run(config.String(), func(t *testing.T) {
			c := dhCase{128, cmp.Or(config.Intermediate, 192), kt.Ragged()}
			in, rows, n := c.inputs(), len(c.p.Expert), c.intermediate
			config.Hidden, config.Intermediate, config.NumExperts, config.Bias = c.hidden, n, len(c.p.Rows), true
			width, points := weights.DH(config).Elements(), Product.Space(driver.H200())
			b := kt.New(t, kt.Timings()[i%len(kt.Timings())])
			dh, sums := b.Room(2*rows*width), b.Room(int(ColumnSumBytes(config, rows)))
			kt.Run(b, DH{Config: config, Tiling: points[i%len(points)]}, 2, Args{
				DO: kt.Upload(b, in.do), Gather: kt.Upload(b, c.p.Gather), W2: kt.Upload(b, in.w), H: kt.Upload(b, in.h), DH: dh, A: b.Room(2 * rows * weights.A(config).Elements()),
				Scores: kt.Upload(b, in.scores), Pairs: kt.Upload(b, in.pairs), DScorePartials: b.Room(4 * rows * groups(n)), ColumnSums: sums, Rows: rows, TileArgs: c.p.Tiles(b),
			})
			stored, got := kt.Download[uint16](b, dh, rows*width), kt.Download[float32](b, sums, int(ColumnSumBytes(config, rows))/4)
			number := num.BF16ToFloat64
			if config.Type == spec.F16 {
				number = num.F16ToFloat64
			}
			for e, count := range c.p.Rows {
				first := slices.Index(c.p.Expert, e)
				for block := 0; block*ColumnSumRows < count; block++ {
					for column := range width {
						var want, size float64
						for row := block * ColumnSumRows; row < min(count, (block+1)*ColumnSumRows); row++ {
							v := number(stored[(first+row)*width+column])
							want, size = want+v, size+math.Abs(v)
						}
						require.InDelta(t, want, got[(first/ColumnSumRows+e+block)*width+column], size*0x1p-20, "expert %d, block %d, column %d", e, block, column)
					}
				}
			}
		})
	}
}
