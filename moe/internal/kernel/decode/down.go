package decode

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// Down is the down-projection of few tokens: Y = W2·A + b2 of each expert's packed
// rows. The weights of its first stages are on their way before the
// up-projection has ended.
type Down struct {
	spec.Config
	// Wide: CTAs are for experts of many tokens, Small: for up to [MostSmall] tokens.
	Wide, Small bool
}

// DownArgs are the arguments of [Down]. Tensors are of the layer's type.
type DownArgs struct {
	// A is the activation by packed row, as [weights.A] has it.
	A driver.DevicePtr
	// W2 [E, d, n] are the weights, as Config has them.
	W2 driver.DevicePtr
	// B2 [E, d] is its bias.
	B2 driver.DevicePtr
	// Y [R, d] is written.
	Y driver.DevicePtr
	// Rows is R.
	Rows int
	gemm.TileArgs
}

func (d Down) units() int { return (d.Hidden + unitRows - 1) / unitRows }

// inPart: the last unit may end past the last row.
func (d Down) inPart() bool { return d.Hidden%unitRows != 0 }

// Build emits the kernel.
func (d Down) Build() (*jit.Kernel[DownArgs], error) {
	shape := shapeOf(d.Wide, d.Small)
	k := jit.NewBuilder[DownArgs]("moe_decode_"+shape.prefix()+"down", shape.threads(), 1)
	k.SetGrid(func(a *DownArgs, sms int) driver.Dim3 { return ctas(a.Rows, d.NumExperts, d.units(), sms) })
	of := units{weights.W2(d.Config)}
	a, w2 := k.Ptr(&k.Args.A), k.Map(&k.Args.W2, func(a *DownArgs) driver.TensorMap { return of.tensorMap(a.W2) })
	y := k.Ptr(&k.Args.Y)
	width := weights.A(d.Config).Elements()
	p := newProduct(k.Kernel, shape, d.Config, k, &k.Args.TileArgs, width/tile.K, d.units())
	p.mnMajor = of.mnMajor()
	if d.Bias {
		b2 := []ptx.Global{k.Ptr(&k.Args.B2)}
		p.bias = func(b block) [][2]ptx.F32 {
			row := b.unit.MulI(unitRows).Add(tile.NewFragment(p.thread).Row)
			if d.inPart() {
				row = row.MinI(d.Hidden - 9) // with the one 8 further
			}
			bias := weights.B2(d.Config)
			return [][2]ptx.F32{{bias.Column(b2, b.expert, row)[0], bias.Column(b2, b.expert, row.AddI(8))[0]}}
		}
	}
	load := func(to, full ptx.Shared, b block, column ptx.U32, part int) {
		k.TMALoad(to, w2, full, of.at(b, column, part)...)
	}
	rows := tokens{at: a, rowBytes: width * tile.ElementBytes, number: func(b block, row ptx.U32) ptx.U32 { return b.row.Add(row) }}
	// The plan, which wrote the table, is done: the up-projection let this
	// kernel start behind its own wait for it. Of small CTAs that one writes the table.
	p.early, p.told = true, d.Small
	p.run(load, rows, func(b block, acc [][]ptx.F32) {
		f := tile.NewFragment(p.thread)
		rowBytes := d.Hidden * tile.ElementBytes
		column := func() ptx.U32 { return b.unit.MulI(unitRows).Add(f.Row) }
		to := y.Index(b.row.Add(f.Column), rowBytes).Index(column(), tile.ElementBytes)
		eachToken(k.Kernel, f, b, acc, nil, func(beyond int, parts [][2]ptx.F32) {
			for i, v := range parts[0] {
				is := ptx.True()
				if d.inPart() {
					is = column().AddI(8 * i).LtI(d.Hidden)
				}
				k.If(is, func() {
					ptx.StGlobal(to.At(beyond*rowBytes+8*i*tile.ElementBytes), element.Of(d.Config).Round(v))
				})
			}
		})
	})
	return k.Build()
}

// DownKernel is the down-projection's, WideDownKernel for passes from [WideFrom] on,
// SmallDownKernel for those up to [MostSmall].
var (
	DownKernel      = downKernel("decode-down", nil, Down{})
	WideDownKernel  = downKernel("decode-wide-down", hasWide, Down{Wide: true})
	SmallDownKernel = downKernel("decode-small-down", choose.ChoosesInProducts, Down{Small: true})
)

func downKernel(name string, only func(c spec.Config) bool, of Down) *registry.Kernel[DownArgs] {
	return &registry.Kernel[DownArgs]{KernelName: name, Only: only, From: registry.OfExperts, Emit: func(l registry.Layer) (*jit.Kernel[DownArgs], error) {
		down := of
		down.Config = l.Config
		return down.Build()
	}}
}
