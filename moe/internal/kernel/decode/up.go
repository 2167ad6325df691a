package decode

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/activation"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// Up is the up-projection of few tokens: H = W1·X[rows], A = silu(gate)·up. Each
// 16 rows of a unit are gate and up of 8 neurons, so that a thread holds both
// values of a neuron.
type Up struct {
	spec.Config
	// SaveH stores H, which backward needs.
	SaveH bool
}

// UpArgs are the arguments of [Up].
type UpArgs struct {
	// X [T, d] bf16 are the tokens, Gather [R] u32 the token of each packed row.
	X      driver.DevicePtr
	Gather driver.DevicePtr
	// W1 [E, 2n, d] are the weights, as Config has them.
	W1 driver.DevicePtr
	// A [R, n] bf16 is written: the activation.
	A driver.DevicePtr
	// H [R, 2n] bf16 is written where SaveH is set: gate, then up.
	H driver.DevicePtr
	// Rows is R.
	Rows int
	TableArgs
}

// gateBlock is the neurons whose gates, and then whose ups, are neighbours in a
// unit.
const gateBlock = 8

// neurons is how many a unit has.
func (u Up) neurons() int { return unitRows / weights.W1(u.Config).Part.Extent }

// units is the units of an expert.
func (u Up) units() int { return weights.A(u.Config).Width / u.neurons() }

// Build emits the kernel.
func (u Up) Build() (*jit.Kernel[UpArgs], error) {
	name := "moe_decode_up"
	if !u.SaveH {
		name = "moe_decode_up_inference" // errors go by the name
	}
	k := jit.NewBuilder[UpArgs](name, threads, ctasOfSM)
	k.SetGrid(func(a *UpArgs, sms int) driver.Dim3 { return ctas(a.Rows, u.NumExperts, u.units(), sms) })
	x, gather := k.Ptr(&k.Args.X), k.Ptr(&k.Args.Gather)
	w1, a := k.Map(&k.Args.W1, u.weightsMap), k.Ptr(&k.Args.A)
	var h ptx.Global
	if u.SaveH {
		h = k.Ptr(&k.Args.H)
	}
	p := newProduct(k.Kernel, k, &k.Args.TableArgs, u.Hidden/tile.K, u.units())
	load := func(s pipeline.Stage, b block, column ptx.U32) {
		if u.Activation.Gated() {
			k.TMALoad(s.Data, w1, s.Full, column, ptx.Uint(0), ptx.Uint(0), b.unit.MulI(u.neurons()/gateBlock), b.expert)
		} else {
			k.TMALoad(s.Data, w1, s.Full, column, b.unit.MulI(unitRows), b.expert)
		}
	}
	rows := tokens{at: x, rowBytes: u.Hidden * tile.ElementBytes, number: func(row ptx.U32) ptx.U32 {
		return ptx.LdGlobal[ptx.U32](gather.Index(row, 4))
	}}
	p.run(load, rows, func(b block, acc []ptx.F32) { u.store(p, b, acc, a, h) })
	return k.Build()
}

// weightsMap loads units of W1: with a gate, 8 rows of each part by turns.
func (u Up) weightsMap(a *UpArgs) driver.TensorMap {
	m := weights.W1(u.Config)
	if !u.Activation.Gated() {
		return tile.LoadMap(a.W1, []int{tile.K, unitRows, 1}, m.In, m.Out, m.Expert)
	}
	return tile.LoadMap(a.W1, []int{tile.K, gateBlock, m.Part.Extent, unitRows / gateBlock / m.Part.Extent, 1},
		m.In, tile.Dim{Extent: gateBlock, Stride: m.Out.Stride}, m.Part,
		tile.Dim{Extent: m.Out.Extent / gateBlock, Stride: gateBlock * m.Out.Stride}, m.Expert)
}

// store stores A, and H where it is saved.
func (u Up) store(p *product, b block, acc []ptx.F32, a, h ptx.Global) {
	k := p.k
	f, act := tile.NewFragment(p.thread), activation.Of(u.Config).Value
	warp, line := p.thread.ShrI(5), p.thread.AndI(31).ShrI(2)
	row := b.row.Add(f.Column)
	aBytes, hBytes := weights.A(u.Config).Elements()*tile.ElementBytes, u.HWidth()*tile.ElementBytes
	if !u.Activation.Gated() {
		neuron := b.unit.MulI(unitRows).Add(f.Row)
		toA, toH := a.Index(row, aBytes).Index(neuron, tile.ElementBytes), h
		if u.SaveH {
			toH = h.Index(row, hBytes).Index(neuron, tile.ElementBytes)
		}
		eachToken(k, f, b, acc, func(beyond int, upper, lower ptx.F32) {
			for i, x := range []ptx.F32{upper, lower} {
				if u.SaveH {
					ptx.StGlobal(toH.At(beyond*hBytes+8*i*tile.ElementBytes), x.BF16())
				}
				ptx.StGlobal(toA.At(beyond*aBytes+8*i*tile.ElementBytes), act(x, x).BF16())
			}
		})
		return
	}
	neuron := b.unit.MulI(u.neurons()).Add(warp.MulI(gateBlock)).Add(line)
	toA, toH := a.Index(row, aBytes).Index(neuron, tile.ElementBytes), h
	if u.SaveH {
		toH = h.Index(row, hBytes).Index(neuron, tile.ElementBytes)
	}
	eachToken(k, f, b, acc, func(beyond int, gate, up ptx.F32) {
		if u.SaveH {
			ptx.StGlobal(toH.At(beyond*hBytes), gate.BF16())
			ptx.StGlobal(toH.At(beyond*hBytes+u.Intermediate*tile.ElementBytes), up.BF16())
		}
		ptx.StGlobal(toA.At(beyond*aBytes), act(gate, up).BF16())
	})
}

// UpKernel is for passes that keep H, UpInferenceKernel for those that don't.
var (
	UpKernel          = &registry.Kernel[UpArgs]{KernelName: "decode-up", Only: Supports, Emit: func(l registry.Layer) (*jit.Kernel[UpArgs], error) { return Up{l.Config, true}.Build() }}
	UpInferenceKernel = &registry.Kernel[UpArgs]{KernelName: "decode-up-inference", Only: Supports, Emit: func(l registry.Layer) (*jit.Kernel[UpArgs], error) { return Up{l.Config, false}.Build() }}
)
