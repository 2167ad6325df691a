package decode

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/activation"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// Up is the up-projection of few tokens: H = W1·X[rows] + b1, and A, the
// activation of H. A thread holds both values of a neuron: each 16 rows of a unit
// are gate and up of 8 neurons, or, where no box of TMA has both, gate and up of
// 64 neurons come in stages of their own.
type Up struct {
	spec.Config
	// SaveH stores H, which backward needs.
	SaveH bool
	// Wide: CTAs are for experts of many tokens.
	Wide bool
}

// UpArgs are the arguments of [Up]. Tensors are of the layer's type.
type UpArgs struct {
	// X [T, d] are the tokens, Gather [R] u32 the token of each packed row.
	X      driver.DevicePtr
	Gather driver.DevicePtr
	// W1 [E, 2n, d] are the weights, as Config has them, W3 their other half.
	W1, W3 driver.DevicePtr
	// B1 and B3 are their biases, [E, rows of W1] and [E, rows of W3].
	B1, B3 driver.DevicePtr
	// A is written, as [weights.A] has it: the activation.
	A driver.DevicePtr
	// H [R, 2n] is written where SaveH is set: gate, then up.
	H driver.DevicePtr
	// Rows is R.
	Rows int
	TableArgs
}

// gateBlock is the neurons whose gates, and then whose ups, are neighbours in a
// unit.
const gateBlock = 8

// byTurns: each 16 rows of a unit are gate and up of 8 neurons.
func (u Up) byTurns() bool {
	m := units{weights.W1(u.Config)}
	return m.hasPart() && !m.mnMajor()
}

// neurons is how many a unit has.
func (u Up) neurons() int {
	if u.byTurns() {
		return unitRows / 2
	}
	return unitRows
}

// parts is the sums of a neuron that have stages of their own.
func (u Up) parts() int {
	if u.Activation.Gated() && !u.byTurns() {
		return 2
	}
	return 1
}

// inPart: the last unit may end past the last neuron.
func (u Up) inPart() bool { return u.Intermediate%unitRows != 0 }

// units is the units of an expert.
func (u Up) units() int { return weights.A(u.Config).Width / u.neurons() }

// Build emits the kernel.
func (u Up) Build() (*jit.Kernel[UpArgs], error) {
	name := "moe_decode_" + prefix(u.Wide) + "up"
	if !u.SaveH {
		name += "_inference" // errors go by the name
	}
	k := jit.NewBuilder[UpArgs](name, shapeOf(u.Wide).threads(), 1)
	k.SetGrid(func(a *UpArgs, sms int) driver.Dim3 { return ctas(a.Rows, u.NumExperts, u.units(), sms) })
	of := units{weights.W1(u.Config)}
	x, gather := k.Ptr(&k.Args.X), k.Ptr(&k.Args.Gather)
	w1 := []ptx.TensorMap{k.Map(&k.Args.W1, func(a *UpArgs) driver.TensorMap { return u.weightsMap(a.W1) })}
	if of.Apart {
		w1 = append(w1, k.Map(&k.Args.W3, func(a *UpArgs) driver.TensorMap { return u.weightsMap(a.W3) }))
	}
	var b1 []ptx.Global
	if u.Bias {
		b1 = weights.B1(u.Config).Tensors(k, &k.Args.B1, &k.Args.B3)
	}
	a := k.Ptr(&k.Args.A)
	var h ptx.Global
	if u.SaveH {
		h = k.Ptr(&k.Args.H)
	}
	p := newProduct(k.Kernel, shapeOf(u.Wide), element.Of(u.Config), k, &k.Args.TableArgs, tile.Tiles(u.Hidden), u.units())
	p.mnMajor = of.mnMajor()
	if u.Bias {
		p.bias = func(b block) [][2]ptx.F32 { return u.bias(p, b, b1) }
	}
	load := func(to, full ptx.Shared, b block, column ptx.U32, part int) {
		k.TMALoad(to, w1[part%len(w1)], full, of.at(b, column, part)...)
	}
	if u.byTurns() {
		load = func(to, full ptx.Shared, b block, column ptx.U32, _ int) {
			k.TMALoad(to, w1[0], full, column, ptx.Uint(0), ptx.Uint(0), b.unit.MulI(u.neurons()/gateBlock), b.expert)
		}
	}
	p.parts = u.parts()
	rows := tokens{at: x, rowBytes: u.Hidden * tile.ElementBytes, number: func(row ptx.U32) ptx.U32 {
		return ptx.LdGlobal[ptx.U32](gather.Index(row, 4))
	}}
	p.run(load, rows, func(b block, acc [][]ptx.F32) { u.store(p, b, acc, a, h) })
	return k.Build()
}

// weightsMap loads units of W1 or W3: 64 rows, or 8 rows of each part by turns.
func (u Up) weightsMap(p driver.DevicePtr) driver.TensorMap {
	m := units{weights.W1(u.Config)}
	if !u.byTurns() {
		return m.tensorMap(p)
	}
	return tile.LoadMap(p, []int{tile.K, gateBlock, m.Part.Extent, unitRows / gateBlock / m.Part.Extent, 1},
		m.In, tile.Dim{Extent: gateBlock, Stride: m.Out.Stride}, m.Part,
		tile.Dim{Extent: m.Out.Extent / gateBlock, Stride: gateBlock * m.Out.Stride}, m.Expert)
}

// neuron gives the thread's first of a block; a thread has a second one, 8
// further, unless gate and up come by turns.
func (u Up) neuron(p *product) func(b block) ptx.U32 {
	if u.byTurns() {
		warp, line := p.thread.ShrI(5), p.thread.AndI(31).ShrI(2)
		return func(b block) ptx.U32 { return b.unit.MulI(u.neurons()).Add(warp.MulI(gateBlock)).Add(line) }
	}
	row := tile.NewFragment(p.thread).Row
	return func(b block) ptx.U32 { return b.unit.MulI(unitRows).Add(row) }
}

// bias is what the thread's sums start from.
func (u Up) bias(p *product, b block, b1 []ptx.Global) [][2]ptx.F32 {
	of, neuron := weights.B1(u.Config), u.neuron(p)(b)
	if u.inPart() { // past the last neurons, which 16 rows have or have not, are others' biases
		neuron = neuron.MinI(u.Intermediate - u.neurons()/unitRows*8 - 1)
	}
	upper := of.Column(b1, b.expert, neuron)
	if u.byTurns() {
		return [][2]ptx.F32{{upper[0], upper[1]}}
	}
	lower := of.Column(b1, b.expert, neuron.AddI(8))
	rows := make([][2]ptx.F32, len(upper))
	for part := range rows {
		rows[part] = [2]ptx.F32{upper[part], lower[part]}
	}
	return rows
}

// values are gate and up, or the one value, of each of the thread's neurons.
func (u Up) values(parts [][2]ptx.F32) [][]ptx.F32 {
	if u.byTurns() {
		return [][]ptx.F32{{parts[0][0], parts[0][1]}}
	}
	neurons := make([][]ptx.F32, 2)
	for i := range neurons {
		for _, rows := range parts {
			neurons[i] = append(neurons[i], rows[i])
		}
	}
	return neurons
}

// store stores A, and H where it is saved.
func (u Up) store(p *product, b block, acc [][]ptx.F32, a, h ptx.Global) {
	f, act := tile.NewFragment(p.thread), activation.Of(u.Config).Value
	neuronOf, row := u.neuron(p), b.row.Add(f.Column)
	neuron := neuronOf(b)
	aBytes, hBytes := weights.A(u.Config).Elements()*tile.ElementBytes, u.HWidth()*tile.ElementBytes
	toA, toH := a.Index(row, aBytes).Index(neuron, tile.ElementBytes), h
	if u.SaveH {
		toH = h.Index(row, hBytes).Index(neuron, tile.ElementBytes)
	}
	eachToken(p.k, f, b, acc, func(beyond int, parts [][2]ptx.F32) {
		for i, v := range u.values(parts) {
			further := 8 * i * tile.ElementBytes
			is := ptx.True()
			if u.inPart() {
				is = neuron.AddI(8 * i).LtI(u.Intermediate)
			}
			storeH := func() {
				for part, x := range v {
					ptx.StGlobal(toH.At(beyond*hBytes+part*u.Intermediate*tile.ElementBytes+further), element.Of(u.Config).Round(x))
				}
			}
			if u.SaveH {
				p.k.If(is, storeH)
			}
			value := act(v[0], v[len(v)-1])
			if u.inPart() {
				value = ptx.Select(is, value, ptx.Float(0)) // A's rows are whole tiles
			}
			ptx.StGlobal(toA.At(beyond*aBytes+further), element.Of(u.Config).Round(value))
		}
	})
}

// UpKernel is for passes that keep H, UpInferenceKernel for those that don't, and the
// wide ones for passes from [WideFrom] on.
var (
	UpKernel              = upKernel("decode-up", Supports, Up{SaveH: true})
	UpInferenceKernel     = upKernel("decode-up-inference", Supports, Up{})
	WideUpKernel          = upKernel("decode-wide-up", hasWide, Up{SaveH: true, Wide: true})
	WideUpInferenceKernel = upKernel("decode-wide-up-inference", hasWide, Up{Wide: true})
)

func upKernel(name string, only func(c spec.Config) bool, of Up) *registry.Kernel[UpArgs] {
	return &registry.Kernel[UpArgs]{KernelName: name, Only: only, From: registry.OfExperts, Emit: func(l registry.Layer) (*jit.Kernel[UpArgs], error) {
		up := of
		up.Config = l.Config
		return up.Build()
	}}
}
