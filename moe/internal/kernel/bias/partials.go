package bias

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// Of is one of the two biases of an expert.
type Of uint8

const (
	// B1 is the up-projection's: [2n], or [n] without a gate.
	B1 Of = iota
	// B2 is the down-projection's: [d].
	B2
)

// width is the columns that are summed.
func (o Of) width(c spec.Config) int {
	if o == B1 {
		return c.HWidth()
	}
	return c.Hidden
}

// rowWidth is the length of a row that is summed: a part of dH is whole tiles.
func (o Of) rowWidth(c spec.Config) int {
	if o == B1 {
		return weights.DH(c).Elements()
	}
	return c.Hidden
}

// Partials sums the rows of each row pair, in their order, in FP32: of dH for
// B1, of dO times score for B2. A thread owns 8 columns of a pair.
type Partials struct {
	spec.Config
	Of Of
}

const (
	sumThreads = 128
	// inFlight are the rows whose loads a thread starts together.
	inFlight = 4
)

// PartialsArgs are the arguments of [Partials].
type PartialsArgs struct {
	// Rows are dH [R, 2n] or [R, n], or dO [T, d].
	Rows driver.DevicePtr
	// For B2: Gather [R] u32 is the token of each packed row, Pairs [R] u32 the
	// index of its score in Scores [T, K] f32.
	Gather driver.DevicePtr
	Pairs  driver.DevicePtr
	Scores driver.DevicePtr
	// Table and RowPairs are the row pairs, see [schedule.Tiles].
	Table    driver.DevicePtr
	RowPairs driver.DevicePtr
	// Partials [Pairs, width] f32 is written.
	Partials driver.DevicePtr
	// PackedRows is R.
	PackedRows int
}

// pairs is the most row pairs of so many rows.
func pairs(c spec.Config, rows int) int { return c.NumExperts + rows/schedule.PairRows }

// PartialBytes is the size of the partial sums of either bias.
func PartialBytes(c spec.Config, rows int) int64 {
	return 4 * int64(pairs(c, rows)) * int64(max(B1.width(c), B2.width(c)))
}

// chunks is the CTAs of so many columns.
func chunks(columns, ofThread int) int {
	return (columns/ofThread + sumThreads - 1) / sumThreads
}

// Build emits the kernel.
func (p Partials) Build() (*jit.Kernel[PartialsArgs], error) {
	name, width := "moe_db1_partials", p.Of.width(p.Config)
	if p.Of == B2 {
		name = "moe_db2_partials"
	}
	k := jit.NewBuilder[PartialsArgs](name, sumThreads, 1)
	k.CTAs(func(a *PartialsArgs) int { return pairs(p.Config, a.PackedRows) * chunks(width, copied) })
	rows, out := k.Ptr(&k.Args.Rows), k.Ptr(&k.Args.Partials)
	var gather, pairOf, scores ptx.Global
	if p.Of == B2 {
		gather, pairOf, scores = k.Ptr(&k.Args.Gather), k.Ptr(&k.Args.Pairs), k.Ptr(&k.Args.Scores)
	}
	table, count := k.Ptr(&k.Args.Table), k.Ptr(&k.Args.RowPairs)
	pair := k.CtaidX().DivI(chunks(width, copied))
	chunk := k.CtaidX().Sub(pair.MulI(chunks(width, copied)))
	column := chunk.MulI(sumThreads).Add(k.TidX()).MulI(copied)
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(pair.Lt(ptx.LdGlobal[ptx.U32](count)).And(column.LtI(width)), func() {
		entry := table.Index(pair, schedule.PairBytes)
		first, n := ptx.LdGlobal[ptx.U32](entry.At(4)), ptx.LdGlobal[ptx.U32](entry.At(8))
		inRow := column
		if of := weights.DH(p.Config); p.Of == B1 && of.Parts > 1 && of.Elements() != width {
			inRow = column.Add(ptx.Select(column.GeI(p.Intermediate), ptx.Uint(of.Width-p.Intermediate), ptx.Uint(0)))
		}
		from := rows.Index(inRow, tile.ElementBytes)
		sums := ptx.NewVars(k.Kernel, copied, ptx.Float(0))
		add := func(row ptx.U32, n int) {
			values, weight := make([][]ptx.U32, n), make([]ptx.F32, n)
			for i := range n {
				of := row.AddI(i)
				if p.Of == B2 {
					weight[i] = ptx.LdGlobal[ptx.F32](scores.Index(ptx.LdGlobal[ptx.U32](pairOf.Index(of, 4)), 4))
					of = ptx.LdGlobal[ptx.U32](gather.Index(of, 4))
				}
				values[i] = ptx.LdGlobalVec[ptx.U32](from.Index(of, p.Of.rowWidth(p.Config)*tile.ElementBytes), 4)
			}
			for i, v := range values {
				for j, word := range v {
					lo, hi := element.Of(p.Config).Unpack(word)
					for h, x := range [2]ptx.F32{lo, hi} {
						sum := sums[2*j+h]
						if p.Of == B2 {
							sum.Set(x.Fma(weight[i], sum.Get()))
						} else {
							sum.Set(sum.Get().Add(x))
						}
					}
				}
			}
		}
		whole := n.DivI(inFlight).MulI(inFlight)
		k.For(ptx.Uint(0), whole, ptx.Uint(inFlight), func(i ptx.U32) { add(first.Add(i), inFlight) })
		k.For(whole, n, ptx.Uint(1), func(i ptx.U32) { add(first.Add(i), 1) })
		to := out.Index(pair, width*4).Index(column, 4)
		for half := range 2 {
			var v []ptx.F32
			for _, s := range sums[4*half:][:4] {
				v = append(v, s.Get())
			}
			ptx.StGlobal(to.At(16*half), v...)
		}
	})
	return k.Build()
}

// B1PartialsKernel and B2PartialsKernel sum row pairs.
var (
	B1PartialsKernel = partialsKernel("db1-partials", B1)
	B2PartialsKernel = partialsKernel("db2-partials", B2)
)

func partialsKernel(name string, of Of) *registry.Kernel[PartialsArgs] {
	return &registry.Kernel[PartialsArgs]{KernelName: name, Backward: true, Only: Has, Emit: func(l registry.Layer) (*jit.Kernel[PartialsArgs], error) {
		return Partials{Config: l.Config, Of: of}.Build()
	}}
}
