package decode

import (
	"sonicmoe/driver"
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

// LoneUp is the up-projection of a lone token, behind the choice of its experts,
// which every CTA makes for itself: Scores, ExpertIDs, and A by slot. A granule is
// 8 neurons: their gates, then their ups.
type LoneUp struct{ spec.Config }

// LoneUpArgs are the arguments of [LoneUp]. Tensors without another type are of
// the layer's.
type LoneUpArgs struct {
	// Sums are the router's, as [choose.ByChains] takes them, RouterBias its biases.
	Sums, RouterBias driver.DevicePtr
	// Chosen [K+1] u32 were 0: the first K become 1 more than the slots' experts, the
	// last the number of CTAs whose last weights are on their way, where LoneDown's
	// lie beside them.
	Chosen driver.DevicePtr
	// Scores [1, K] f32 and ExpertIDs [1, K] i32 are written, best first, Logits
	// [1, E], in the layer's format, unless 0.
	Scores    driver.DevicePtr
	ExpertIDs driver.DevicePtr
	Logits    driver.DevicePtr
	// X [1, d] is the token.
	X driver.DevicePtr
	// W1 [E, 2n, d] are the weights, as Config has them, W3 their other half.
	W1, W3 driver.DevicePtr
	// B1 and B3 are their biases, [E, rows of W1] and [E, rows of W3].
	B1, B3 driver.DevicePtr
	// A is written: the activation, by slot, in rows as [weights.A] has them.
	A driver.DevicePtr
	// H [K, 2n] is written unless 0: gate, then up, by expert.
	H driver.DevicePtr
}

// parts are those of a neuron.
func (u LoneUp) parts() int { return weights.W1(u.Config).Part.Extent }

// ofExpert is the granules of an expert.
func (u LoneUp) ofExpert() int { return u.Intermediate / octetRows }

// granules is all that there are.
func (u LoneUp) granules() int { return u.TopK * u.ofExpert() }

// Build emits the kernel.
func (u LoneUp) Build() (*jit.Kernel[LoneUpArgs], error) {
	k := jit.NewBuilder[LoneUpArgs]("moe_lone_up", loneThreads, 1)
	granules := u.granules()
	k.SetGrid(func(_ *LoneUpArgs, sms int) driver.Dim3 { return loneGrid(granules, sms) })
	p := newLone(k.Kernel, u.Config, granules, u.parts(), u.Hidden, 8, ringsOf(u.Config).up)
	c := loneChoice{lone: p, sums: k.Ptr(&k.Args.Sums), chosen: k.Ptr(&k.Args.Chosen), scores: k.Ptr(&k.Args.Scores), ids: k.Ptr(&k.Args.ExpertIDs), logits: k.Ptr(&k.Args.Logits)}
	if u.RouterBias {
		c.bias = k.Ptr(&k.Args.RouterBias)
	}
	x := k.Map(&k.Args.X, func(a *LoneUpArgs) driver.TensorMap { return p.tokenMap(a.X, 1, u.Hidden) })
	m := weights.W1(u.Config)
	w1 := []ptx.TensorMap{k.Map(&k.Args.W1, func(a *LoneUpArgs) driver.TensorMap { return p.octetMap(m, a.W1) })}
	if m.Apart {
		w1 = append(w1, k.Map(&k.Args.W3, func(a *LoneUpArgs) driver.TensorMap { return p.octetMap(m, a.W3) }))
	}
	var b1 []ptx.Global
	if u.Bias {
		b1 = weights.B1(u.Config).Tensors(k, &k.Args.B1, &k.Args.B3)
	}
	a, h := k.Ptr(&k.Args.A), k.Ptr(&k.Args.H)
	p.begin()
	k.GridDepWait()
	k.GridDepLaunch()
	c.choose()
	piece := func(granule, _ ptx.U32) loadPiece {
		n := u.neuron(p, granule)
		return func(to, full ptx.Shared, kt ptx.U32) {
			for part, w := range w1 {
				p.loadOctet(m, w, to.At(part*octetBytes), full, n.first, kt, n.expert)
			}
		}
	}
	loads := loneLoads{pieces: 1, piece: piece, token: x}
	if isBeside(u.Config) {
		loads.last = func() {
			k.If(p.lane.EqI(0), func() { k.RedGlobalAdd(c.chosen.At(4*u.TopK), ptx.Uint(1)) })
		}
	}
	p.run(loads, loneSums{
		start: func(first, n ptx.U32, acc [][]ptx.F32) { u.start(p, first, n, acc, b1) },
		store: func(first, n ptx.U32, acc [][]ptx.F32) { u.store(p, first, n, acc, a, h) },
	})
	return k.Build()
}

// loneChoice is the choice of the experts.
type loneChoice struct {
	*lone
	sums, bias, chosen, scores, ids, logits ptx.Global
}

// choose has the first warp of every CTA choose. The last CTA's, whose share is no
// larger than another's, then scores, and writes what is chosen, while its other warps
// go on.
func (c loneChoice) choose() {
	k := c.k
	scores := k.CtaidX().Eq(k.NctaidX().SubI(1))
	of := choose.ByChains{Router: choose.RouterOf(c.Config), Sums: c.sums, Bias: c.bias, Tokens: ptx.Uint(1), Logits: ptx.GlobalAt(ptx.Select(scores, c.logits.Addr(), ptx.Long(0)))}
	meet := func() { k.BarSync(ptx.Uint(0)) }
	k.IfElse(c.warp.EqI(0), func() {
		of.Choose(k, ptx.Uint(0), c.lane, func(experts []ptx.U32) {
			k.If(c.lane.EqI(0), func() {
				for slot, id := range experts {
					ptx.StShared(c.lone.ids.At(4*slot), id)
				}
			})
			meet()
		}, scores, func(slot ptx.U32, score ptx.F32, id ptx.U32) {
			// Nothing but the word itself is told: a release would wait for other stores.
			k.RedGlobalAdd(c.chosen.Index(slot, 4), id.AddI(1))
			ptx.StGlobal(c.scores.Index(slot, 4), score)
			ptx.StGlobal(c.ids.Index(slot, 4), id)
		})
	}, meet)
}

// neurons are those of a granule.
type neurons struct{ slot, expert, first ptx.U32 }

func (u LoneUp) neuron(p *lone, granule ptx.U32) neurons {
	slot := granule.DivI(u.ofExpert())
	return neurons{slot, p.expert(slot), granule.RemI(u.ofExpert()).MulI(octetRows)}
}

// eachNeuron runs body for the thread's neurons of a pass: its values are those
// of the given sums, part by part.
func (u LoneUp) eachNeuron(p *lone, first, n ptx.U32, body func(pair int, sums []int, its ptx.Pred, of neurons, neuron ptx.U32)) {
	line := p.lane.ShrI(2)
	for i := range p.tiles() {
		for half := 0; half < 2; half += u.parts() {
			granule := p.octet(i, half).DivI(u.parts())
			its := granule.Lt(n)
			of := u.neuron(p, first.Add(granule.Min(n.SubI(1))))
			sums := []int{2 * half}
			if u.parts() == 2 {
				sums = []int{0, 2}
			}
			body(i, sums, its, of, of.first.Add(line))
		}
	}
}

// start sets the sums of a pass to biases, or to 0.
func (u LoneUp) start(p *lone, first, n ptx.U32, acc [][]ptx.F32, b1 []ptx.Global) {
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

// store stores A, and H where the pass keeps it: the token is the first column.
func (u LoneUp) store(p *lone, first, n ptx.U32, acc [][]ptx.F32, a, h ptx.Global) {
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

// rank is the place of an expert among the chosen by number: its packed row.
func (p *lone) rank(expert ptx.U32) ptx.U32 {
	rank := ptx.Uint(0)
	for slot := range p.TopK {
		before := ptx.LdShared[ptx.U32](p.ids.At(4 * slot)).Lt(expert)
		rank = rank.Add(ptx.Select(before, ptx.Uint(1), ptx.Uint(0)))
	}
	return rank
}

// LoneUpKernel is the up-projection of a lone token.
var LoneUpKernel = &registry.Kernel[LoneUpArgs]{KernelName: "lone-up", Only: choose.HasLone, Emit: func(l registry.Layer) (*jit.Kernel[LoneUpArgs], error) {
	return LoneUp{l.Config}.Build()
}}
