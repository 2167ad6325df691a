package dw

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/gradient"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// bothCase is a layer of one of the kernels of [Both], with its inputs.
type bothCase struct {
	Both
	layer           spec.Config
	tokens          int
	offsets, gather []uint32
	// x has the rows, of width elements each. u has the rows of the adapter's first product.
	x, u, factor []uint16
	width        int
	old          []float32
}

// TestBoth checks the gradient and the product of both kernels for all row counts around the ends of
// steps, in all layouts of the factors. The rows of every other expert are NaN and infinities, which
// must have no effect on the others.
func TestBoth(t *testing.T) {
	for i, c := range []struct {
		of    func(spec.Config, gradient.Mode) Both
		store gradient.Mode
		split int // the number of rows of a split; 0 means the default
		layer spec.Config
	}{
		{BothB1, gradient.Mode{}, 0, spec.Config{Hidden: 208, LoRARank: 16}},
		{BothB2, gradient.Mode{F32: true}, 0, spec.Config{Hidden: 208, LoRARank: 16}},
		{BothB1, gradient.Mode{Accumulate: true}, 0, spec.Config{Hidden: 208, LoRARank: 16, InOut: true, GateUp: spec.Interleaved}},
		{BothB2, gradient.Mode{}, 128, spec.Config{Hidden: 528, LoRARank: 8, InOut: true}},
		{aloneB2, gradient.Mode{}, 128, spec.Config{Hidden: 528, LoRARank: 40}},
		{aloneA1, gradient.Mode{F32: true}, 0, spec.Config{Hidden: 208, LoRARank: 64}},
		{BothB1, gradient.Mode{F32: true, Accumulate: true}, 64, spec.Config{Hidden: 208, LoRARank: 8, GateUp: spec.Interleaved}},
	} {
		t.Run(fmt.Sprintf("%d", i), func(t *testing.T) {
			c.layer.Intermediate, c.layer.NumExperts, c.layer.LoRAAlpha = 272, len(everyRows), 24
			of := newBothCase(c.layer, c.of(c.layer, c.store), c.split)
			gradients, v := of.run(kt.New(t, kt.Early))
			for e := 0; e < len(everyRows); e += 2 {
				of.check(t, e, gradients, v)
			}
		})
	}
}

// newBothCase draws the inputs of a kernel.
func newBothCase(layer spec.Config, of Both, split int) *bothCase {
	c := &bothCase{Both: of, layer: layer, tokens: 90, width: of.width()}
	c.SplitRows = split
	for e, n := range everyRows {
		c.offsets = append(c.offsets, uint32(len(c.gather)))
		for i := range n {
			c.gather = append(c.gather, uint32((len(c.gather)*7+i*13)%c.tokens+e%2*c.tokens))
		}
	}
	c.offsets = append(c.offsets, uint32(len(c.gather)))
	sources := len(c.gather)
	if c.Gathers {
		c.width, sources = c.neurons(), 2*c.tokens
	}
	values := func(seed uint64, scale float64, n int) []uint16 {
		return reference.NewNormal(seed, scale).Values(int64(n))
	}
	elements := len(everyRows) * c.lines() * c.Hidden
	c.x, c.u, c.factor = values(3, 1, sources*c.width), values(4, 1, len(c.gather)*c.Hidden), values(5, 1, elements)
	for _, v := range values(6, 20, elements) {
		c.old = append(c.old, float32(num.BF16ToFloat64(v)))
	}
	for e := 1; e < len(everyRows); e += 2 {
		for row := int(c.offsets[e]); row < int(c.offsets[e+1]); row++ {
			for j := range c.width {
				c.x[c.source(row)*c.width+j] = []uint16{0x7f80, 0x7fc0, 0xff80}[(row+j)%3]
			}
		}
	}
	return c
}

// lines returns the number of lines of the factor.
func (c *bothCase) lines() int { return c.packed().Parts * c.neurons() }

// source returns the row of x of a packed row.
func (c *bothCase) source(row int) int {
	if c.Gathers {
		return int(c.gather[row])
	}
	return row
}

// place returns the index of a value of the factor.
func (c *bothCase) place(expert, line, rank int) int {
	of, ranks, neurons := c.matrix()
	return expert*of.Expert.Stride + line/c.neurons()*of.Part.Stride + line%c.neurons()*neurons.Stride + rank*ranks.Stride
}

// run returns the gradient as FP32 bits, and V if the kernel has a product.
func (c *bothCase) run(b *kt.Bed) (gradients []uint32, v []uint16) {
	const slots = 4
	rows := len(c.gather)
	plan := Plan{NumExperts: len(everyRows), SplitRows: c.SplitRows}
	splits, counts, tickets, state := b.Room(SplitBytes*plan.Splits(rows)), b.Room(8), b.Room(8), b.Room(8*slots)
	kt.Run(b, plan, 0, PlanArgs{Offsets: kt.Upload(b, c.offsets), Splits: splits, Counts: counts, Tickets: tickets, State: state, StateWords: 2 * slots})
	out, sums, to := kt.NewStored(b, c.Store, c.old), b.Room(int(c.SumsBytes(rows))), b.Room(2*rows*c.Hidden)
	args := Args{
		X: kt.Upload(b, c.u), Gather: kt.Upload(b, c.gather), PackedRows: kt.Upload(b, c.x), DW: out.At, Factor: kt.Upload(b, c.factor), Sums: sums,
		Splits: splits, Counts: counts, Tickets: tickets, Partials: b.Room(slots * c.PartialBytes()), State: state, Slots: slots, Rows: rows,
	}
	if c.Alone {
		args.X, args.PackedRows = args.PackedRows, args.X
		kt.Run(b, c.Both, 3, args)
		return out.Download(b), nil
	}
	kt.Run(b, c.Both, 3, args)
	kt.Run(b, Sum{Config: c.layer, Factor: "b", Blocks: c.Blocks()}, 3, SumArgs{Sums: sums, V: to, Rows: rows})
	return out.Download(b), kt.Download[uint16](b, to, rows*c.Hidden)
}

// check compares an expert's gradient and its rows of V with float64.
func (c *bothCase) check(t *testing.T, expert int, got []uint32, v []uint16) {
	scale := float64(spec.LoRAScale(c.layer))
	lines, neurons, part := c.lines(), c.neurons(), c.packed().Width
	gradients, sizes := make([]float64, lines*c.Hidden), make([]float64, lines*c.Hidden)
	factor := make([]float64, lines*c.Hidden)
	for i := range factor {
		factor[i] = num.BF16ToFloat64(c.factor[c.place(expert, i/c.Hidden, i%c.Hidden)])
	}
	for row := int(c.offsets[expert]); row < int(c.offsets[expert+1]); row++ {
		sum, size, u := make([]float64, c.Hidden), make([]float64, c.Hidden), make([]float64, c.Hidden)
		for r := range u {
			u[r] = num.BF16ToFloat64(c.u[row*c.Hidden+r])
		}
		for line := range lines {
			y := num.BF16ToFloat64(c.x[c.source(row)*c.width+line/neurons*part+line%neurons])
			for r := range c.Hidden {
				p, q := y*factor[line*c.Hidden+r], y*u[r]
				sum[r], size[r] = sum[r]+p, size[r]+math.Abs(p)
				gradients[line*c.Hidden+r] += q
				sizes[line*c.Hidden+r] += math.Abs(q)
			}
		}
		for r := range c.Hidden {
			if c.Alone {
				break
			}
			value := v[row*c.Hidden+r]
			require.True(t, kt.Between(value, scale*sum[r], scale*size[r]*0x1p-18), "V, row %d, rank %d: %g, must be %g", row, r, num.BF16ToFloat64(value), scale*sum[r])
		}
	}
	for i, want := range gradients {
		at := c.place(expert, i/c.Hidden, i%c.Hidden)
		ok := kt.Within(c.Store, got[at], c.old[at], want, sizes[i]*0x1p-18)
		if everyRows[expert] == 0 && c.Store.Accumulate {
			ok = got[at] == math.Float32bits(c.old[at])
		}
		require.True(t, ok, "expert %d, line %d, rank %d: %g, must be %g", expert, i/c.Hidden, i%c.Hidden, math.Float32frombits(got[at]), want)
	}
}
