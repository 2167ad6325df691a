package decode

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/activation"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// Up is the up-projection of few tokens: H = W1·X[rows] + b1, and A, the
// activation of H, or with ScoreOnInput of H times the row's score. A thread holds
// both values of a neuron: each 16 rows of a unit are gate and up of 8 neurons, by
// turns or in pairs of rows, which lanes then change with each other, or, where no box
// of TMA has both, gate and up of 64 neurons come in stages of their own.
type Up struct {
	spec.Config
	// Wide: CTAs are for experts of many tokens.
	Wide bool
	// Small: CTAs are for up to [MostSmall] tokens, and each chooses their experts itself
	// from the router's sums; the last one writes what is chosen, and the plan.
	Small bool
}

// UpArgs are the arguments of [Up]. Tensors are of the layer's type.
type UpArgs struct {
	// X [T, d] are the tokens, Gather [R] u32 the token of each packed row, which small
	// CTAs know themselves.
	X      driver.DevicePtr
	Gather driver.DevicePtr
	// W1 [E, 2n, d] are the weights, as Config has them, W3 their other half.
	W1, W3 driver.DevicePtr
	// B1 and B3 are their biases, [E, rows of W1] and [E, rows of W3].
	B1, B3 driver.DevicePtr
	// Scores [T, K] f32, Pairs [R] u32 the index in it of each packed row: with
	// ScoreOnInput.
	Scores, Pairs driver.DevicePtr
	// A is written, as [weights.A] has it: the activation.
	A driver.DevicePtr
	// H [R, 2n] is written unless 0: gate, then up, which backward needs.
	H driver.DevicePtr
	// Rows is R.
	Rows int
	// Table and RowPairs are written where CTAs are small.
	gemm.TileArgs
	// ChoiceArgs are theirs.
	ChoiceArgs
}

// gateBlock is the neurons whose gates, and then whose ups, are neighbours in a
// unit.
const gateBlock = 8

// byTurns: each 16 rows of a unit are the gates of 8 neurons, then their ups.
func (u Up) byTurns() bool {
	m := units{weights.W1(u.Config)}
	return m.hasPart() && !m.mnMajor()
}

// inPairs: each two rows of a unit are gate and up of a neuron.
func (u Up) inPairs() bool { return weights.InPairs(u.Config) }

// together: a unit has gate and up of its neurons.
func (u Up) together() bool { return u.byTurns() || u.inPairs() }

// neurons is how many a unit has.
func (u Up) neurons() int {
	if u.together() {
		return unitRows / 2
	}
	return unitRows
}

// parts is the sums of a neuron that have stages of their own.
func (u Up) parts() int {
	if u.Activation.Gated() && !u.together() {
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
	shape := shapeOf(u.Wide, u.Small)
	k := jit.NewBuilder[UpArgs]("moe_decode_"+shape.prefix()+"up", shape.threads(), 1)
	k.SetGrid(func(a *UpArgs, sms int) driver.Dim3 { return ctas(a.Rows, u.NumExperts, u.units(), sms) })
	of := units{weights.W1(u.Config)}
	x, gather := k.Ptr(&k.Args.X), ptx.Global{}
	if !u.Small {
		gather = k.Ptr(&k.Args.Gather)
	}
	w1 := []ptx.TensorMap{k.Map(&k.Args.W1, func(a *UpArgs) driver.TensorMap { return u.weightsMap(a.W1) })}
	if of.Apart {
		w1 = append(w1, k.Map(&k.Args.W3, func(a *UpArgs) driver.TensorMap { return u.weightsMap(a.W3) }))
	}
	var b1 []ptx.Global
	if u.Bias {
		b1 = weights.B1(u.Config).Tensors(k, &k.Args.B1, &k.Args.B3)
	}
	e := upEpilogue{Up: u, a: k.Ptr(&k.Args.A), h: k.Ptr(&k.Args.H)}
	if u.ScoreOnInput {
		e.scores, e.pairs = k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.Pairs)
	}
	p := newProduct(k.Kernel, shape, u.Config, k, &k.Args.TileArgs, tile.Tiles(u.Hidden), u.units())
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
	rows := tokens{at: x, rowBytes: u.Hidden * tile.ElementBytes, number: func(b block, row ptx.U32) ptx.U32 {
		return ptx.LdGlobal[ptx.U32](gather.Index(b.row.Add(row), 4))
	}}
	if u.Small {
		p.chosen = newChoice(p, u.Config, k, &k.Args.ChoiceArgs)
		rows.number = tokenOf
	}
	e.product = p
	p.run(load, rows, e.store)
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
// further, unless a unit has gate and up.
func (u Up) neuron(p *product) func(b block) ptx.U32 {
	if u.byTurns() {
		warp, line := p.thread.ShrI(5), p.thread.AndI(31).ShrI(2)
		return func(b block) ptx.U32 { return b.unit.MulI(u.neurons()).Add(warp.MulI(gateBlock)).Add(line) }
	}
	row := tile.NewFragment(p.thread).Row
	if u.inPairs() { // that of an even upper row, or of an odd lower one
		own := row.ShrI(1).Add(row.AndI(1).MulI(gateBlock / 2))
		return func(b block) ptx.U32 { return b.unit.MulI(u.neurons()).Add(own) }
	}
	return func(b block) ptx.U32 { return b.unit.MulI(unitRows).Add(row) }
}

// isOdd: the thread's rows are, which in pairs are ups.
func (p *product) isOdd() ptx.Pred { return tile.NewFragment(p.thread).Row.AndI(1).NeI(0) }

// join gives a thread gate and up of its neuron, where they are in pairs of rows: of
// its upper row and its lower one it keeps the one and changes the other with
// the lane that has the neighbouring rows. The whole warp takes part.
func (u Up) join(p *product) func(rows [2]ptx.F32) [2]ptx.F32 {
	if !u.inPairs() {
		return nil
	}
	odd := p.isOdd()
	return func(rows [2]ptx.F32) [2]ptx.F32 {
		const lanesOfRow = 4
		got := ptx.Select(odd, rows[0], rows[1]).Bits().ShflXor(lanesOfRow).AsF32()
		return [2]ptx.F32{ptx.Select(odd, got, rows[0]), ptx.Select(odd, rows[1], got)}
	}
}

// bias is what the thread's sums start from.
func (u Up) bias(p *product, b block, b1 []ptx.Global) [][2]ptx.F32 {
	of := weights.B1(u.Config)
	if u.inPairs() { // as the rows
		row := b.unit.MulI(unitRows).Add(tile.NewFragment(p.thread).Row)
		if u.inPart() {
			row = row.MinI(of.N - 9) // with the one 8 further
		}
		return [][2]ptx.F32{{of.Column(b1, b.expert, row)[0], of.Column(b1, b.expert, row.AddI(8))[0]}}
	}
	neuron := u.neuron(p)(b)
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
	if u.together() {
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

// upEpilogue stores A, and H where the pass keeps it.
type upEpilogue struct {
	Up
	*product
	a, h ptx.Global
	// scores and pairs are there with ScoreOnInput.
	scores, pairs ptx.Global
}

func (e upEpilogue) store(b block, acc [][]ptx.F32) {
	f, act := tile.NewFragment(e.thread), activation.Of(e.Config).Value
	neuronOf, row := e.neuron(e.product), b.row.Add(f.Column)
	neuron := neuronOf(b)
	aBytes, hBytes := weights.A(e.Config).Elements()*tile.ElementBytes, e.HWidth()*tile.ElementBytes
	toA, toH := e.a.Index(row, aBytes).Index(neuron, tile.ElementBytes), e.h.Index(row, hBytes).Index(neuron, tile.ElementBytes)
	keepsH := e.h.Given()
	eachToken(e.k, f, b, acc, e.join(e.product), func(beyond int, parts [][2]ptx.F32) {
		var score ptx.F32
		if e.ScoreOnInput {
			score = ptx.LdGlobal[ptx.F32](e.scores.Index(ptx.LdGlobal[ptx.U32](e.pairs.Index(row, 4).At(4*beyond)), 4))
		}
		for i, v := range e.values(parts) {
			further := 8 * i * tile.ElementBytes
			is := ptx.True()
			if e.inPart() {
				is = neuron.AddI(8 * i).LtI(e.Intermediate)
			}
			e.k.If(keepsH.And(is), func() {
				for part, x := range v {
					ptx.StGlobal(toH.At(beyond*hBytes+part*e.Intermediate*tile.ElementBytes+further), element.Of(e.Config).Round(x))
				}
			})
			gate, up := v[0], v[len(v)-1]
			if e.ScoreOnInput {
				gate, up = gate.Mul(score), up.Mul(score)
			}
			value := act(gate, up)
			if e.inPart() {
				value = ptx.Select(is, value, ptx.Float(0)) // A's rows are whole tiles
			}
			ptx.StGlobal(toA.At(beyond*aBytes+further), element.Of(e.Config).Round(value))
		}
	})
}

// UpKernel is the up-projection's, WideUpKernel for passes from [WideFrom] on,
// SmallUpKernel for those up to [MostSmall].
var (
	UpKernel      = upKernel("decode-up", nil, Up{})
	WideUpKernel  = upKernel("decode-wide-up", hasWide, Up{Wide: true})
	SmallUpKernel = upKernel("decode-small-up", choose.ChoosesInProducts, Up{Small: true})
)

func upKernel(name string, only func(c spec.Config) bool, of Up) *registry.Kernel[UpArgs] {
	from := registry.OfExperts
	if of.Small { // which is of the router too
		from = nil
	}
	return &registry.Kernel[UpArgs]{KernelName: name, Only: only, From: from, Emit: func(l registry.Layer) (*jit.Kernel[UpArgs], error) {
		up := of
		up.Config = l.Config
		return up.Build()
	}}
}
