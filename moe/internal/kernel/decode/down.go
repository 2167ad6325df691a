package decode

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// Down is the down-projection of a small batch: Y = W2·A + b2 of each expert's packed rows. It
// loads its first weights before the up-projection has ended.
type Down struct {
	spec.Config
	// Wide selects wide CTAs, which are for batches from [WideFrom] tokens on. Mid selects CTAs of 96
	// tokens, which are for batches of packed weights from [UnitsMidFrom] tokens on. Few selects CTAs of
	// 32 tokens, which are for batches of packed weights up to [UnitsFewUpTo] tokens. Tiny selects
	// tiny CTAs, which are for up to [MaxTiny] tokens.
	Wide, Mid, Few, Tiny bool
	// Units means that W2 has the units of [fragments.W2]. Otherwise W2 has plain weights.
	Units bool
}

// DownArgs are the arguments of [Down]. Tensors are of the layer's type.
type DownArgs struct {
	// A is the activation by packed row, in the layout of [weights.A].
	A driver.DevicePtr
	// W2 [E, d, n] are the weights in Config's layout. With Units, W2 has the units of
	// [fragments.W2].
	W2 driver.DevicePtr
	// B2 [E, d] is the bias.
	B2 driver.DevicePtr
	// Y [R, d] is the output.
	Y driver.DevicePtr
	// Rows is R.
	Rows int
	gemm.TileArgs
	// Progress is Table if the kernel before is the up-projection. CTAs of 32 tokens then start with
	// the experts whose up-projection is complete. If Progress is 0, they wait for the end of the kernel
	// before.
	Progress driver.DevicePtr
}

func (d Down) units() int { return (d.Hidden + unitRows - 1) / unitRows }

// inPart reports whether the last unit may end past the last row.
func (d Down) inPart() bool { return d.Hidden%unitRows != 0 }

func (d Down) kind() kind {
	return kind{wide: d.Wide, mid: d.Mid, few: d.Few, tiny: d.Tiny, units: d.Units}
}

// Build emits the kernel.
func (d Down) Build() (*jit.Kernel[DownArgs], error) {
	stage := stageOf(d.Config, d.Intermediate, d.kind())
	k := jit.NewBuilder[DownArgs]("moe_decode_"+d.kind().name()+"down", stage.threads(), 1)
	k.SetGrid(func(a *DownArgs, sms int) gpu.Dim3 { return ctas(a.Rows, d.NumExperts, d.units(), sms) })
	cta := pipeline.NewCTA(k.Kernel)
	width := weights.A(d.Config).Elements()

	// Operands. The up-projection launches this kernel after its own wait for the plan, so the
	// table is complete before this kernel waits. Tiny CTAs are the exception: the up-projection
	// writes their table itself, so they poll its length.
	bias, read := d.biases(k), beforeWait
	if d.Tiny {
		read = poll(k.Kernel)
	}
	in := operands{early: true, tickets: k.Ptr(&k.Args.Tickets), table: planned{k.Ptr(&k.Args.Table), k.Ptr(&k.Args.RowPairs), read, d.kind().hasProgress()}}
	in.tokens = tokens{at: k.Ptr(&k.Args.A), rowBytes: width * tile.ElementBytes, number: func(b block, row ptx.U32) ptx.U32 { return b.row.Add(row) }}
	y := k.Ptr(&k.Args.Y)
	in.weights = d.loadW2(k)

	// Ring "ab" holds stages of W2 and A, and a queue holds the tiles.
	p := newProduct(k.Kernel, cta, stage, d.Config, sums{columns: width, units: d.units(), parts: 1, mnMajor: units{weights.W2(d.Config)}.mnMajor(), bias: bias})
	if d.kind().hasProgress() {
		p.before = progress{table: k.Ptr(&k.Args.Progress), units: fragments.W1(d.Config).Units}
	}

	// Roles "math" and "load". The epilogue rounds and stores Y.
	boxes, store := boxes{}, func(b block, acc [][]ptx.F32) { d.store(k.Kernel, b, acc, y) }
	if stage.hasBoxes() {
		boxes = newBoxes(p, k.Map(&k.Args.Y, func(a *DownArgs) gpu.TensorMap { return boxMap(a.Y, tile.K, d.Hidden, a.Rows) }), tile.K)
		store = func(b block, acc [][]ptx.F32) { boxes.store(b, func(j int) ptx.F32 { return acc[0][j] }) }
	}
	p.run(in, boxes, store)
	return k.Build()
}

// loadW2 returns the function that loads a unit of W2.
func (d Down) loadW2(k *jit.Builder[DownArgs]) loadUnit {
	if d.Units {
		return loadPacked(k.Kernel, k.Ptr(&k.Args.W2), fragments.W2(d.Config))
	}
	of := units{weights.W2(d.Config)}
	w2 := k.Map(&k.Args.W2, func(a *DownArgs) gpu.TensorMap { return of.tensorMap(a.W2) })
	return func(to, full ptx.Shared, b block, column, _ ptx.U32, part int) {
		k.TMALoad(to, w2, full, of.at(b, column, part)...)
	}
}

// store rounds and stores a block's sums.
func (d Down) store(k *ptx.Kernel, b block, acc [][]ptx.F32, y ptx.Global) {
	f, rowBytes := fragment(k), d.Hidden*tile.ElementBytes
	column := b.unit.MulI(unitRows).Add(f.Row)
	to := y.Index(b.row.Add(f.Column), rowBytes).Index(column, tile.ElementBytes)
	eachToken(k, f, b, acc, unchanged, func(beyond int, parts [][2]ptx.F32) {
		for i, v := range parts[0] {
			is := ptx.True()
			if d.inPart() {
				is = column.AddI(8 * i).LtI(d.Hidden)
			}
			k.If(is, func() {
				ptx.StGlobal(to.At(beyond*rowBytes+8*i*tile.ElementBytes), element.Of(d.Config).Round(v))
			})
		}
	})
}

// biases returns the initial values of the sums: b2, or 0.
func (d Down) biases(k *jit.Builder[DownArgs]) biases {
	if !d.Bias {
		return noBias(1)
	}
	b2, of := []ptx.Global{k.Ptr(&k.Args.B2)}, weights.B2(d.Config)
	return biases{given: true, of: func(b block) [][2]ptx.F32 {
		row := b.unit.MulI(unitRows).Add(fragment(k.Kernel).Row)
		if d.inPart() {
			row = row.MinI(d.Hidden - 9) // leaves room for the thread's second row, which is 8 further
		}
		return [][2]ptx.F32{{of.Column(b2, b.expert, row)[0], of.Column(b2, b.expert, row.AddI(8))[0]}}
	}}
}

// DownKernel is the down-projection of a small batch. WideDownKernel is for batches from [WideFrom]
// tokens on, TinyDownKernel for up to [MaxTiny] tokens.
var (
	DownKernel     = downKernel("decode-down", nil, Down{})
	WideDownKernel = downKernel("decode-wide-down", hasWide, Down{Wide: true})
	TinyDownKernel = downKernel("decode-tiny-down", hasTiny, Down{Tiny: true})
	// UnitsDownKernel reads the units of packed weights. WideUnitsDownKernel is for batches from
	// [UnitsWideFrom] tokens on, MidUnitsDownKernel from [UnitsMidFrom] tokens on, FewUnitsDownKernel for
	// up to [UnitsFewUpTo] tokens, and TinyUnitsDownKernel for up to [MaxTiny] tokens.
	UnitsDownKernel     = downKernel("decode-units-down", spec.IsPacked, Down{Units: true})
	FewUnitsDownKernel  = downKernel("decode-units-few-down", spec.IsPacked, Down{Few: true, Units: true})
	MidUnitsDownKernel  = downKernel("decode-units-mid-down", spec.IsPacked, Down{Mid: true, Units: true})
	WideUnitsDownKernel = downKernel("decode-units-wide-down", spec.IsPacked, Down{Wide: true, Units: true})
	TinyUnitsDownKernel = downKernel("decode-units-tiny-down", hasTinyUnits, Down{Tiny: true, Units: true})
)

func downKernel(name string, only func(c spec.Config) bool, of Down) *registry.Kernel[DownArgs] {
	from := registry.OfExperts
	if of.Units {
		from = ofPacked
	}
	return &registry.Kernel[DownArgs]{KernelName: name, Only: only, From: from, Emit: func(l registry.Layer) (*jit.Kernel[DownArgs], error) {
		down := of
		down.Config = l.Config
		return down.Build()
	}}
}
