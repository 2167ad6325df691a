package decode

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/activation"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// SingleUp is the up-projection of a single token. First, every CTA chooses the token's experts.
// The last CTA writes Scores and ExpertIDs. A has a row for each slot. An item is 8 neurons of one
// expert: their gates, then their ups.
type SingleUp struct{ spec.Config }

// SingleUpArgs are the arguments of [SingleUp]. Tensors have the layer's
// type unless another is given.
type SingleUpArgs struct {
	// Sums has the router's sums, as [choose.ByChains] reads them. RouterBias has the router's
	// biases.
	Sums, RouterBias driver.DevicePtr
	// Chosen [K+1] u32 must be 0 at the start. The kernel adds the expert of each slot plus 1 to
	// the first K words. If CTAs of SingleDown overlap this kernel, each CTA adds 1 to the last
	// word when it has started all its loads of weights. SingleUnitsUp adds the number of its slices.
	Chosen driver.DevicePtr
	// Scores [1, K] f32 and ExpertIDs [1, K] i32 are outputs, the best expert first. Logits [1, E],
	// in the layer's format, is an output unless its address is 0.
	Scores    driver.DevicePtr
	ExpertIDs driver.DevicePtr
	Logits    driver.DevicePtr
	// X [1, d] is the token.
	X driver.DevicePtr
	// W1 [E, 2n, d] are the weights in Config's layout. If gate and up are separate tensors, W3 is
	// up's half.
	W1, W3 driver.DevicePtr
	// B1 and B3 are the biases, [E, rows of W1] and [E, rows of W3].
	B1, B3 driver.DevicePtr
	// A is an output: the activation, a row for each slot, in the layout of [weights.A].
	A driver.DevicePtr
	// H [K, 2n] is an output unless its address is 0: gate, then up, with the rows sorted by
	// expert.
	H driver.DevicePtr
}

// parts returns the number of parts of a neuron: 2 (gate and up), or 1 without a gate.
func (u SingleUp) parts() int { return weights.W1(u.Config).Part.Extent }

// ofExpert returns the number of items of an expert.
func (u SingleUp) ofExpert() int { return u.Intermediate / stripRows }

// items returns the number of items of the token.
func (u SingleUp) items() int { return u.TopK * u.ofExpert() }

// Build emits the kernel.
func (u SingleUp) Build() (*jit.Kernel[SingleUpArgs], error) {
	k := jit.NewBuilder[SingleUpArgs]("moe_single_up", singleThreads, 1)
	shape := newSingleShape(u.items(), u.parts(), u.Hidden, 8)
	k.SetGrid(func(_ *SingleUpArgs, sms int) gpu.Dim3 { return singleGrid(shape.items, sms) })
	thread := newSingleThread(k.Kernel)

	// Operands.
	choice := u.choice(k)
	x := k.Map(&k.Args.X, func(a *SingleUpArgs) gpu.TensorMap { return shape.tokenMap(a.X, 1, u.Hidden) })
	m := weights.W1(u.Config)
	w1 := []ptx.TensorMap{k.Map(&k.Args.W1, func(a *SingleUpArgs) gpu.TensorMap { return shape.stripMap(m, a.W1) })}
	if m.Apart {
		w1 = append(w1, k.Map(&k.Args.W3, func(a *SingleUpArgs) gpu.TensorMap { return shape.stripMap(m, a.W3) }))
	}
	var b1 []ptx.Global
	if u.Bias {
		b1 = weights.B1(u.Config).Tensors(k, &k.Args.B1, &k.Args.B3)
	}
	a, h := k.Ptr(&k.Args.A), k.Ptr(&k.Args.H)

	// Ring "ab" holds stages of W1 and the token. Each CTA chooses the experts before its roles
	// start.
	p := newSingle(thread, u.Config, shape, ringsOf(u.Config).up)
	mine := p.begin()
	k.GridDepWait()
	k.GridDepLaunch()
	singleChoice{p, choice}.choose()

	// Roles "math" and "load". The epilogue stores A and H.
	piece := func(item, _ ptx.U32) loadPiece {
		n := u.neuron(p, item)
		return func(to, full ptx.Shared, kt ptx.U32) {
			for part, w := range w1 {
				p.loadStrip(m, w, to.At(part*stripBytes), full, n.first, kt, n.expert)
			}
		}
	}
	loads := singleLoads{pieces: 1, piece: piece, token: x, beforeToken: nothing, beforeWeights: nothing, afterWeights: nothing}
	if overlaps(u.Config) {
		loads.afterWeights = func() {
			k.If(p.lane.EqI(0), func() { k.RedGlobalAdd(choice.chosen.At(4*u.TopK), ptx.Uint(1)) })
		}
	}
	mine.run(loads, singleSums{
		start:  func(first, n ptx.U32, acc [][]ptx.F32) { u.start(p, first, n, acc, b1) },
		store:  func(first, n ptx.U32, acc [][]ptx.F32) { u.store(p, first, n, acc, a, h) },
		ahead:  nothing,
		before: nothing,
	})
	return k.Build()
}

// singleChoiceTensors are the parameters of the choice of experts.
type singleChoiceTensors struct{ sums, bias, chosen, scores, ids, logits ptx.Global }

func (u SingleUp) choice(k *jit.Builder[SingleUpArgs]) singleChoiceTensors {
	c := singleChoiceTensors{sums: k.Ptr(&k.Args.Sums), chosen: k.Ptr(&k.Args.Chosen), scores: k.Ptr(&k.Args.Scores), ids: k.Ptr(&k.Args.ExpertIDs), logits: k.Ptr(&k.Args.Logits)}
	if u.RouterBias {
		c.bias = k.Ptr(&k.Args.RouterBias)
	}
	return c
}

// singleChoice is the choice of experts.
type singleChoice struct {
	*single
	in singleChoiceTensors
}

// choose emits the choice, which runs in the first warp of every CTA. The last CTA also computes
// the scores and writes the choice, while its other warps go on. Its share of the items is no
// larger than the share of any other CTA.
func (c singleChoice) choose() {
	k := c.k
	scores := k.CtaidX().Eq(k.NctaidX().SubI(1))
	of := choose.ByChains{Router: choose.RouterOf(c.Config), Sums: c.in.sums, Bias: c.in.bias, Tokens: ptx.Uint(1), Logits: ptx.GlobalAt(ptx.Select(scores, c.in.logits.Addr(), ptx.Long(0)))}
	meet := func() { k.BarSync(ptx.Uint(0)) }
	k.IfElse(c.warp.EqI(0), func() {
		of.Choose(k, ptx.Uint(0), c.lane, func(experts []ptx.U32) {
			k.If(c.lane.EqI(0), func() {
				for slot, id := range experts {
					ptx.StShared(c.single.ids.At(4*slot), id)
				}
			})
			meet()
		}, scores, func(slot ptx.U32, score ptx.F32, id ptx.U32) {
			// A relaxed access is enough: readers use only this word, and a release would wait for
			// earlier stores.
			k.RedGlobalAdd(c.in.chosen.Index(slot, 4), id.AddI(1))
			ptx.StGlobal(c.in.scores.Index(slot, 4), score)
			ptx.StGlobal(c.in.ids.Index(slot, 4), id)
		})
	}, meet)
}

// neurons has the slot, the expert and the first neuron of an item.
type neurons struct{ slot, expert, first ptx.U32 }

func (u SingleUp) neuron(p *single, item ptx.U32) neurons {
	slot := item.DivI(u.ofExpert())
	return neurons{slot, p.expert(slot), item.RemI(u.ofExpert()).MulI(stripRows)}
}

// eachNeuron calls body for each of the thread's neurons in a pass. sums has the indices of the
// neuron's sums: gate, then up. The parameter its is false for a neuron beyond the pass.
func (u SingleUp) eachNeuron(p *single, first, n ptx.U32, body func(pair int, sums []int, its ptx.Pred, of neurons, neuron ptx.U32)) {
	line := p.lane.ShrI(2)
	for i := range p.tiles() {
		for half := 0; half < 2; half += u.parts() {
			item := p.strip(i, half).DivI(u.parts())
			its := item.Lt(n)
			of := u.neuron(p, first.Add(item.Min(n.SubI(1))))
			sums := []int{2 * half}
			if u.parts() == 2 {
				sums = []int{0, 2}
			}
			body(i, sums, its, of, of.first.Add(line))
		}
	}
}

// start sets the sums of a pass to the biases, or to 0 without biases.
func (u SingleUp) start(p *single, first, n ptx.U32, acc [][]ptx.F32, b1 []ptx.Global) {
	u.eachNeuron(p, first, n, func(pair int, sums []int, _ ptx.Pred, of neurons, neuron ptx.U32) {
		from := []ptx.F32{ptx.Float(0), ptx.Float(0)}
		if u.Bias {
			from = weights.B1(u.Config).Column(b1, of.expert, neuron)
		}
		for part, sum := range sums {
			for column := range 2 {
				ptx.VarOf(acc[pair][sum+column]).Set(from[part])
			}
		}
	})
}

// store stores A, and H if the pass keeps it. The token is the first column of the sums.
func (u SingleUp) store(p *single, first, n ptx.U32, acc [][]ptx.F32, a, h ptx.Global) {
	k, act := p.k, activation.Of(u.Config).Value
	aBytes, hBytes := weights.A(u.Config).Elements()*tile.ElementBytes, u.HWidth()*tile.ElementBytes
	isToken := p.lane.AndI(3).EqI(0)
	u.eachNeuron(p, first, n, func(pair int, sums []int, its ptx.Pred, of neurons, neuron ptx.U32) {
		k.If(its.And(isToken), func() {
			var v []ptx.F32
			for _, sum := range sums {
				v = append(v, acc[pair][sum])
			}
			k.If(h.Given(), func() {
				to := h.Index(p.rank(of.expert), hBytes).Index(neuron, tile.ElementBytes)
				for part, x := range v {
					ptx.StGlobal(to.At(part*u.Intermediate*tile.ElementBytes), element.Of(u.Config).Round(x))
				}
			})
			ptx.StGlobal(a.Index(of.slot, aBytes).Index(neuron, tile.ElementBytes), element.Of(u.Config).Round(act(v[0], v[len(v)-1])))
		})
	})
}

// rank returns the packed row of a chosen expert: the number of chosen experts with lower ids.
func (p *single) rank(expert ptx.U32) ptx.U32 {
	rank := ptx.Uint(0)
	for slot := range p.TopK {
		before := ptx.LdShared[ptx.U32](p.ids.At(4 * slot)).Lt(expert)
		rank = rank.Add(ptx.Select(before, ptx.Uint(1), ptx.Uint(0)))
	}
	return rank
}

// SingleUpKernel is the up-projection of a single token.
var SingleUpKernel = &registry.Kernel[SingleUpArgs]{KernelName: "single-up", Only: choose.HasSingle, Emit: func(l registry.Layer) (*jit.Kernel[SingleUpArgs], error) {
	return SingleUp{l.Config}.Build()
}}
