package decode

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/activation"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// Up is the up-projection of a small batch. It computes H = W1·X[rows] + b1, and A, the activation
// of H. With ScoreOnInput, A is the activation of H times the row's score. A thread holds gate and
// up of its neurons. There are three cases. If TMA can load gate and up in one box, each 16 rows of
// a unit are 8 gates, then 8 ups (alternating). If gate and up of a neuron are neighbouring rows,
// the lanes exchange values (in pairs). Otherwise gate and up of 64 neurons have stages of their
// own.
type Up struct {
	spec.Config
	// Wide selects wide CTAs, which are for batches from [WideFrom] tokens on. Mid selects CTAs of 96
	// tokens, which are for batches of packed weights from [UnitsMidFrom] tokens on. Few selects CTAs of
	// 32 tokens, which are for batches of packed weights up to [UnitsFewUpTo] tokens.
	Wide, Mid, Few bool
	// Tiny selects tiny CTAs, which are for up to [MaxTiny] tokens. Each CTA chooses the experts of
	// all tokens itself, from the router's sums. The last CTA writes the choice and the plan.
	Tiny bool
	// Units means that W1 has the units of [fragments.W1]. Otherwise W1 has plain weights.
	Units bool
}

// UpArgs are the arguments of [Up]. Tensors are of the layer's type.
type UpArgs struct {
	// X [T, d] are the tokens. Gather [R] u32 is the token of each packed row. Tiny CTAs do not
	// read Gather.
	X      driver.DevicePtr
	Gather driver.DevicePtr
	// W1 [E, 2n, d] are the weights in Config's layout. If gate and up are separate tensors, W3 is
	// up's half. With Units, W1 has the units of both.
	W1, W3 driver.DevicePtr
	// B1 and B3 are the biases, [E, rows of W1] and [E, rows of W3].
	B1, B3 driver.DevicePtr
	// With ScoreOnInput, Scores [T, K] f32 are the scores, and Pairs [R] u32 is the index in Scores
	// of each packed row.
	Scores, Pairs driver.DevicePtr
	// A is an output: the activation, in the layout of [weights.A].
	A driver.DevicePtr
	// H [R, 2n] is an output unless its address is 0: gate, then up, for the backward pass.
	H driver.DevicePtr
	// Rows is R.
	Rows int
	// Tiny CTAs write Table and RowPairs of TileArgs. Other CTAs read them. CTAs of 32 tokens count
	// their progress in Table, see [DownArgs].
	gemm.TileArgs
	// ChoiceArgs are used by tiny CTAs only.
	ChoiceArgs
}

// gateBlock is the number of consecutive gate rows in an alternating unit. The up rows of the same
// neurons follow.
const gateBlock = 8

// alternating reports whether each 16 rows of a unit are the gates of 8 neurons, then their ups.
func (u Up) alternating() bool {
	if u.Units {
		return u.Activation.Gated()
	}
	m := units{weights.W1(u.Config)}
	return m.hasPart() && !m.mnMajor()
}

// inPairs reports whether each two rows of a unit are gate and up of a neuron.
func (u Up) inPairs() bool { return weights.InPairs(u.Config) }

// together reports whether a unit has gate and up of its neurons.
func (u Up) together() bool { return u.alternating() || u.inPairs() }

// neurons returns the number of neurons of a unit.
func (u Up) neurons() int {
	if u.together() {
		return unitRows / 2
	}
	return unitRows
}

// parts returns the number of sums of a neuron that have stages of their own: 2 for gate and up, or
// 1.
func (u Up) parts() int {
	if u.Activation.Gated() && !u.together() {
		return 2
	}
	return 1
}

// inPart reports whether the last unit may end past the last neuron.
func (u Up) inPart() bool { return u.Intermediate%unitRows != 0 }

// units returns the number of units of an expert.
func (u Up) units() int { return weights.A(u.Config).Width / u.neurons() }

func (u Up) kind() kind {
	return kind{wide: u.Wide, mid: u.Mid, few: u.Few, tiny: u.Tiny, units: u.Units}
}

// Build emits the kernel.
func (u Up) Build() (*jit.Kernel[UpArgs], error) {
	stage := stageOf(u.Config, u.Hidden, u.kind())
	stage.counts = u.kind().hasProgress()
	k := jit.NewBuilder[UpArgs]("moe_decode_"+u.kind().name()+"up", stage.threads(), 1)
	k.SetGrid(func(a *UpArgs, sms int) gpu.Dim3 { return ctas(a.Rows, u.NumExperts, u.units(), sms) })
	cta := pipeline.NewCTA(k.Kernel)

	// Operands.
	bias, w1 := u.biases(k), u.loadW1(k)
	x, tickets := k.Ptr(&k.Args.X), k.Ptr(&k.Args.Tickets)
	tableOf, number := u.table(k)

	// Ring "ab" holds stages of W1 and X, and a queue holds the tiles.
	p := newProduct(k.Kernel, cta, stage, u.Config, sums{
		columns: u.Hidden, units: u.units(), parts: u.parts(), mnMajor: units{weights.W1(u.Config)}.mnMajor(), bias: bias,
	})
	table := tableOf(p)
	if stage.counts {
		p.progress = newProgress(cta, k.Ptr(&k.Args.Table), p.mathWarps())
	}

	// Roles "math" and "load". The epilogue stores A and H.
	out := u.epilogue(k, p)
	p.run(operands{
		weights: w1, tokens: tokens{at: x, rowBytes: u.Hidden * tile.ElementBytes, number: number}, table: table, tickets: tickets,
	}, out.boxes, out.store)
	return k.Build()
}

// table returns the function that makes the product's table, and the function that returns the token
// of a block's row. With Tiny each CTA chooses the experts. Otherwise a plan has chosen them.
func (u Up) table(k *jit.Builder[UpArgs]) (of func(p *product) table, number func(b block, row ptx.U32) ptx.U32) {
	if u.Tiny {
		in := newChoiceTensors(u.Config, k, &k.Args.ChoiceArgs, &k.Args.TileArgs)
		return func(p *product) table { return newChoice(p, u.Config, in) }, tokenOf
	}
	plan := planned{k.Ptr(&k.Args.Table), k.Ptr(&k.Args.RowPairs), afterWait, u.kind().hasProgress()}
	gather := k.Ptr(&k.Args.Gather)
	return func(*product) table { return plan }, func(b block, row ptx.U32) ptx.U32 {
		return ptx.LdGlobal[ptx.U32](gather.Index(b.row.Add(row), 4))
	}
}

// loadW1 returns the function that loads a unit of W1, and of W3.
func (u Up) loadW1(k *jit.Builder[UpArgs]) loadUnit {
	if u.Units {
		return loadPacked(k.Kernel, k.Ptr(&k.Args.W1), fragments.W1(u.Config))
	}
	of := units{weights.W1(u.Config)}
	w1 := []ptx.TensorMap{k.Map(&k.Args.W1, func(a *UpArgs) gpu.TensorMap { return u.weightsMap(a.W1) })}
	if of.Apart {
		w1 = append(w1, k.Map(&k.Args.W3, func(a *UpArgs) gpu.TensorMap { return u.weightsMap(a.W3) }))
	}
	if u.alternating() {
		return func(to, full ptx.Shared, b block, column, _ ptx.U32, _ int) {
			k.TMALoad(to, w1[0], full, column, ptx.Uint(0), ptx.Uint(0), b.unit.MulI(u.neurons()/gateBlock), b.expert)
		}
	}
	return func(to, full ptx.Shared, b block, column, _ ptx.U32, part int) {
		k.TMALoad(to, w1[part%len(w1)], full, of.at(b, column, part)...)
	}
}

// biases returns the initial values of the sums: b1, or 0.
func (u Up) biases(k *jit.Builder[UpArgs]) biases {
	if !u.Bias {
		return noBias(u.parts())
	}
	b1 := weights.B1(u.Config).Tensors(k, &k.Args.B1, &k.Args.B3)
	return biases{given: true, of: func(b block) [][2]ptx.F32 { return u.bias(k.Kernel, b, b1) }}
}

// weightsMap returns the tensor map that loads units of W1 or W3: 64 rows, or 8 rows of gate and of
// up alternating.
func (u Up) weightsMap(p driver.DevicePtr) gpu.TensorMap {
	m := units{weights.W1(u.Config)}
	if !u.alternating() {
		return m.tensorMap(p)
	}
	return tile.LoadMap(p, []int{tile.K, gateBlock, m.Part.Extent, unitRows / gateBlock / m.Part.Extent, 1},
		m.In, tile.Dim{Extent: gateBlock, Stride: m.Out.Stride}, m.Part,
		tile.Dim{Extent: m.Out.Extent / gateBlock, Stride: gateBlock * m.Out.Stride}, m.Expert)
}

// neuron returns the thread's first neuron of a block. If gate and up neither alternate nor are in
// pairs, the thread also has the neuron 8 after it.
func (u Up) neuron(k *ptx.Kernel, b block) ptx.U32 {
	if u.alternating() {
		warp, line := ptx.WarpOf(k.ThreadInWarpgroup()), k.Lane().ShrI(2)
		return b.unit.MulI(u.neurons()).Add(warp.MulI(gateBlock)).Add(line)
	}
	row := fragment(k).Row
	if u.inPairs() { // gate and up of this neuron are the two rows that the thread has after join
		return b.unit.MulI(u.neurons()).Add(row.ShrI(1).Add(row.AndI(1).MulI(gateBlock / 2)))
	}
	return b.unit.MulI(unitRows).Add(row)
}

// join returns the function by which a thread gets gate and up of its neuron. If gate and up are in
// pairs of rows, the thread keeps one of its two rows, and exchanges the other with the lane that
// has the neighbouring row. The whole warp takes part.
func (u Up) join(k *ptx.Kernel) func(rows [2]ptx.F32) [2]ptx.F32 {
	if !u.inPairs() {
		return unchanged
	}
	isOdd := fragment(k).Row.AndI(1).NeI(0)
	return func(rows [2]ptx.F32) [2]ptx.F32 {
		const lanesOfRow = 4
		got := ptx.Select(isOdd, rows[0], rows[1]).Bits().ShflXor(lanesOfRow).AsF32()
		return [2]ptx.F32{ptx.Select(isOdd, got, rows[0]), ptx.Select(isOdd, rows[1], got)}
	}
}

// bias returns the biases of the thread's sums of a block.
func (u Up) bias(k *ptx.Kernel, b block, b1 []ptx.Global) [][2]ptx.F32 {
	of := weights.B1(u.Config)
	if u.inPairs() { // one bias for each row
		row := b.unit.MulI(unitRows).Add(fragment(k).Row)
		if u.inPart() {
			row = row.MinI(of.N - 9) // leaves room for the thread's second row, which is 8 further
		}
		return [][2]ptx.F32{{of.Column(b1, b.expert, row)[0], of.Column(b1, b.expert, row.AddI(8))[0]}}
	}
	neuron := u.neuron(k, b)
	if u.inPart() { // rows past the last neuron come in whole groups of 16; any bias will do for them
		neuron = neuron.MinI(u.Intermediate - u.neurons()/unitRows*8 - 1)
	}
	upper := of.Column(b1, b.expert, neuron)
	if u.alternating() {
		return [][2]ptx.F32{{upper[0], upper[1]}}
	}
	lower := of.Column(b1, b.expert, neuron.AddI(8))
	rows := make([][2]ptx.F32, len(upper))
	for part := range rows {
		rows[part] = [2]ptx.F32{upper[part], lower[part]}
	}
	return rows
}

// values returns the values of each of the thread's neurons: gate and up, or one value if the layer
// has no gate.
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

// upEpilogue stores A, and H if the pass keeps it.
type upEpilogue struct {
	Up
	k    *ptx.Kernel
	a, h ptx.Global
	// scores and pairs are set with ScoreOnInput.
	scores, pairs ptx.Global
	boxes         boxes // with wide and mid tiles of packed weights: the boxes that store A
}

func (u Up) epilogue(k *jit.Builder[UpArgs], p *product) upEpilogue {
	e := upEpilogue{Up: u, k: k.Kernel, a: k.Ptr(&k.Args.A), h: k.Ptr(&k.Args.H)}
	if u.ScoreOnInput {
		e.scores, e.pairs = k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.Pairs)
	}
	if p.hasBoxes() {
		e.boxes = newBoxes(p, k.Map(&k.Args.A, func(a *UpArgs) gpu.TensorMap {
			return boxMap(a.A, u.neurons(), weights.A(u.Config).Elements(), a.Rows)
		}), u.neurons())
	}
	return e
}

// store stores a block's H and A.
func (e upEpilogue) store(b block, acc [][]ptx.F32) {
	if !e.boxes.given() {
		e.storeEach(b, acc)
		return
	}
	e.storeBoxes(b, acc[0])
	e.k.If(e.h.Given(), func() { e.storeEach(b, acc) })
}

// storeBoxes stores A through boxes.
func (e upEpilogue) storeBoxes(b block, sums []ptx.F32) {
	f, neuron, act := fragment(e.k), e.neuron(e.k, b), activation.Of(e.Config).Value
	e.boxes.store(b, func(j int) ptx.F32 {
		lower := j / 2 % 2 // 1 for the thread's lower row
		gate, up := sums[j], sums[j]
		if e.together() {
			up = sums[j+2]
		}
		if e.ScoreOnInput {
			row := b.row.Add(f.Column.AddI(j/4*8 + j%2).Min(b.rows.SubI(1)))
			score := ptx.LdGlobal[ptx.F32](e.scores.Index(ptx.LdGlobal[ptx.U32](e.pairs.Index(row, 4)), 4))
			gate, up = gate.Mul(score), up.Mul(score)
		}
		value := act(gate, up)
		if e.inPart() {
			value = ptx.Select(neuron.AddI(8*lower).LtI(e.Intermediate), value, ptx.Float(0)) // rows of A are padded to whole k-tiles
		}
		return value
	})
}

// storeEach stores H, and A unless boxes does, each thread its own values.
func (e upEpilogue) storeEach(b block, acc [][]ptx.F32) {
	f, act := fragment(e.k), activation.Of(e.Config).Value
	neuron, row := e.neuron(e.k, b), b.row.Add(f.Column)
	aBytes, hBytes := weights.A(e.Config).Elements()*tile.ElementBytes, e.HWidth()*tile.ElementBytes
	toA, toH := e.a.Index(row, aBytes).Index(neuron, tile.ElementBytes), e.h.Index(row, hBytes).Index(neuron, tile.ElementBytes)
	keepsH := e.h.Given()
	eachToken(e.k, f, b, acc, e.join(e.k), func(beyond int, parts [][2]ptx.F32) {
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
			if e.boxes.given() {
				continue
			}
			gate, up := v[0], v[len(v)-1]
			if e.ScoreOnInput {
				gate, up = gate.Mul(score), up.Mul(score)
			}
			value := act(gate, up)
			if e.inPart() {
				value = ptx.Select(is, value, ptx.Float(0)) // rows of A are padded to whole k-tiles
			}
			ptx.StGlobal(toA.At(beyond*aBytes+further), element.Of(e.Config).Round(value))
		}
	})
}

// UpKernel is the up-projection of a small batch. WideUpKernel is for batches from [WideFrom]
// tokens on, TinyUpKernel for up to [MaxTiny] tokens.
var (
	UpKernel     = upKernel("decode-up", nil, Up{})
	WideUpKernel = upKernel("decode-wide-up", hasWide, Up{Wide: true})
	TinyUpKernel = upKernel("decode-tiny-up", hasTiny, Up{Tiny: true})
	// UnitsUpKernel reads the units of packed weights. WideUnitsUpKernel is for batches from
	// [UnitsWideFrom] tokens on, MidUnitsUpKernel from [UnitsMidFrom] tokens on, FewUnitsUpKernel for up
	// to [UnitsFewUpTo] tokens, and TinyUnitsUpKernel for up to [MaxTiny] tokens.
	UnitsUpKernel     = upKernel("decode-units-up", spec.IsPacked, Up{Units: true})
	FewUnitsUpKernel  = upKernel("decode-units-few-up", spec.IsPacked, Up{Few: true, Units: true})
	MidUnitsUpKernel  = upKernel("decode-units-mid-up", spec.IsPacked, Up{Mid: true, Units: true})
	WideUnitsUpKernel = upKernel("decode-units-wide-up", spec.IsPacked, Up{Wide: true, Units: true})
	TinyUnitsUpKernel = upKernel("decode-units-tiny-up", hasTinyUnits, Up{Tiny: true, Units: true})
)

func upKernel(name string, only func(c spec.Config) bool, of Up) *registry.Kernel[UpArgs] {
	from := registry.OfExperts
	switch {
	case of.Tiny: // the kernel's text depends on the router, too
		from = nil
	case of.Units:
		from = ofPacked
	}
	return &registry.Kernel[UpArgs]{KernelName: name, Only: only, From: from, Emit: func(l registry.Layer) (*jit.Kernel[UpArgs], error) {
		up := of
		up.Config = l.Config
		return up.Build()
	}}
}
