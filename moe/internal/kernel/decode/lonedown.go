package decode

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// LoneDown is the down-projection of a lone token and the sum over its experts:
// O = Σ_k score[k]·(W2[k]·A[k] + b2[k]), each expert's rounded, in slot order. A
// granule is the same 8 rows of every expert, so that a CTA has all that is
// summed. It is told of the experts as soon as they are chosen: its first weights
// are on their way before the up-projection has ended, but, where CTAs of both lie side
// by side, behind that one's.
type LoneDown struct{ spec.Config }

// LoneDownArgs are the arguments of [LoneDown]. Tensors without another type are
// of the layer's.
type LoneDownArgs struct {
	// Chosen [K+1] u32 are the slots' experts and 1, or 0 before they are chosen, and
	// the number of LoneUp's CTAs whose last weights are on their way.
	Chosen driver.DevicePtr
	// Scores [1, K] f32 are theirs.
	Scores driver.DevicePtr
	// A is the activation by slot, in rows as [weights.A] has them.
	A driver.DevicePtr
	// W2 [E, d, n] are the weights.
	W2 driver.DevicePtr
	// B2 [E, d] is its bias.
	B2 driver.DevicePtr
	// SharedRow [1, d] and SharedScore [1] f32 are the shared experts'.
	SharedRow   driver.DevicePtr
	SharedScore driver.DevicePtr
	// O [1, d] is written.
	O driver.DevicePtr
}

// Build emits the kernel.
func (d LoneDown) Build() (*jit.Kernel[LoneDownArgs], error) {
	k := jit.NewBuilder[LoneDownArgs]("moe_lone_down", loneThreads, 1)
	granules := d.Hidden / octetRows
	k.SetGrid(func(_ *LoneDownArgs, sms int) driver.Dim3 { return loneGrid(granules, sms) })
	p := newLone(k.Kernel, d.Config, granules, d.TopK, d.Intermediate, (d.TopK+7)/8*8, ringsOf(d.Config).down)
	m := weights.W2(d.Config)
	chosen, scores := k.Ptr(&k.Args.Chosen), k.Ptr(&k.Args.Scores)
	a := k.Map(&k.Args.A, func(g *LoneDownArgs) driver.TensorMap { return p.tokenMap(g.A, d.TopK, weights.A(d.Config).Elements()) })
	w2 := k.Map(&k.Args.W2, func(g *LoneDownArgs) driver.TensorMap { return p.octetMap(m, g.W2) })
	s := loneSum{lone: p, o: k.Ptr(&k.Args.O)}
	if d.Bias {
		s.b2 = k.Ptr(&k.Args.B2)
	}
	if d.SharedExperts > 0 {
		s.shared = k.Ptr(&k.Args.SharedRow)
		if d.SharedGate {
			s.sharedScore = k.Ptr(&k.Args.SharedScore)
		}
	}
	s.scores = p.cta.Shared("scores", 4*d.TopK, 4)
	s.y = p.cta.Shared("y", tile.ElementBytes*p.most*octetRows*d.TopK, 4)
	s.meet = p.cta.NamedBarriers("y", 1, pipeline.WarpgroupThreads)
	p.begin()
	s.receive(chosen)
	piece := func(granule, slot ptx.U32) loadPiece {
		expert, row := p.expert(slot), granule.MulI(octetRows)
		return func(to, full ptx.Shared, kt ptx.U32) { p.loadOctet(m, w2, to, full, row, kt, expert) }
	}
	loads := loneLoads{pieces: d.TopK, piece: piece, token: a, before: func() {
		k.GridDepWait()
		k.GridDepLaunch()
	}}
	if isBeside(d.Config) {
		loads.first = func() { s.follow(chosen.At(4 * d.TopK)) }
	}
	p.run(loads, loneSums{s.start, s.store, func() {
		k.GridDepWait()
		s.loadScores(scores)
	}})
	return k.Build()
}

// loneSum is the epilogue of a LoneDown: each expert's sums, and their sum.
type loneSum struct {
	*lone
	b2, shared, sharedScore, o ptx.Global
	// scores are the slots', y a pass's rows of every slot; meet joins those who
	// write and read these.
	scores, y ptx.Shared
	meet      pipeline.NamedBarriers
}

// receive waits for the experts in the lanes of the first warp: the kernel that
// chooses them is under way, all of its CTAs, when this one starts.
func (s loneSum) receive(chosen ptx.Global) {
	k := s.k
	k.If(s.thread.LtI(s.TopK), func() {
		id := ptx.NewVar(k, ptx.Uint(0))
		at := chosen.Index(s.thread, 4)
		k.Loop(func() {
			id.Set(ptx.LdGlobalAcquire(at))
			k.BreakIf(id.Get().NeI(0))
		})
		ptx.StShared(s.ids.Plus(s.thread.ShlI(2)), id.Get().SubI(1))
	})
	k.BarSync(ptx.Uint(0))
}

// follow has a warp wait until half of the up-projection's CTAs have their last weights
// on their way. Weights that come before those only keep them waiting.
func (s loneSum) follow(under ptx.Global) {
	k := s.k
	// No more than the CTAs that there are of either product.
	half := k.NctaidX().MinI(LoneUp{Config: s.Config}.granules()).AddI(1).ShrI(1)
	k.If(s.lane.EqI(0), func() {
		k.Loop(func() { k.BreakIf(ptx.LdGlobalAcquire(under).Ge(half)) })
	})
	k.BarWarpSync(ptx.Uint(ptx.FullMask))
}

// loadScores brings the scores to shared memory. A warp that multiplies does, while it
// would wait: in front of A's first loads they kept all for half a microsecond.
func (s loneSum) loadScores(scores ptx.Global) {
	s.k.If(s.lane.LtI(s.TopK), func() {
		ptx.StShared(s.scores.Plus(s.lane.ShlI(2)), ptx.LdGlobal[ptx.F32](scores.Index(s.lane, 4)))
	})
	s.k.BarWarpSync(ptx.Uint(ptx.FullMask))
}

// eachRow runs body for the thread's rows of a pass: register half·2 of a pair of octets
// and the next, and those 4 further, are columns.
func (s loneSum) eachRow(first, n ptx.U32, body func(pair, half int, its ptx.Pred, slot, row ptx.U32)) {
	line := s.lane.ShrI(2)
	for i := range s.tiles() {
		for half := range 2 {
			octet := s.octet(i, half)
			granule, slot := octet.DivI(s.TopK), octet.RemI(s.TopK)
			body(i, half, granule.Lt(n), slot, granule.Min(n.SubI(1)).MulI(octetRows).Add(line))
		}
	}
}

// start sets the sums of a pass to biases, or to 0.
func (s loneSum) start(first, n ptx.U32, acc [][]ptx.F32) {
	s.eachRow(first, n, func(pair, half int, _ ptx.Pred, slot, row ptx.U32) {
		from := ptx.Float(0)
		if s.Bias {
			from = weights.B2(s.Config).Column([]ptx.Global{s.b2}, s.expert(slot), first.MulI(octetRows).Add(row))[0]
		}
		for j := 2 * half; j < len(acc[pair]); j += 4 {
			ptx.VarOf(acc[pair][j]).Set(from)
			ptx.VarOf(acc[pair][j+1]).Set(from)
		}
	})
}

// store sums a pass's rows over the slots, each in one thread.
func (s loneSum) store(first, n ptx.U32, acc [][]ptx.F32) {
	k, top := s.k, s.TopK
	column := s.lane.AndI(3).MulI(2)
	s.eachRow(first, n, func(pair, half int, its ptx.Pred, slot, row ptx.U32) {
		to := s.y.Plus(row.Mad(ptx.Uint(top), slot).ShlI(1))
		for j := 0; j < len(acc[pair])/4; j++ {
			for i := range 2 {
				k.If(its.And(slot.Eq(column.AddI(8*j+i))), func() { ptx.StShared(to, element.Of(s.Config).Round(acc[pair][4*j+2*half+i])) })
			}
		}
	})
	s.meet.Sync(ptx.Uint(0))
	k.If(s.thread.Lt(n.MulI(octetRows)), func() {
		sum := ptx.Float(0)
		for slot := range top {
			y := element.Of(s.Config).Wide(ptx.LdShared[ptx.B16](s.y.Plus(s.thread.MulI(tile.ElementBytes * top)).At(tile.ElementBytes * slot)))
			sum = y.Fma(ptx.LdShared[ptx.F32](s.scores.At(4*slot)), sum)
		}
		row := first.MulI(octetRows).Add(s.thread)
		if s.SharedExperts > 0 {
			score := ptx.Float(1)
			if s.SharedGate {
				score = ptx.LdGlobal[ptx.F32](s.sharedScore)
			}
			sum = element.Of(s.Config).Wide(ptx.LdGlobal[ptx.B16](s.shared.Index(row, tile.ElementBytes))).Fma(score, sum)
		}
		ptx.StGlobal(s.o.Index(row, tile.ElementBytes), element.Of(s.Config).Round(sum))
	})
	s.meet.Sync(ptx.Uint(0)) // the next pass writes where this one has read
}

// LoneDownKernel is the down-projection and sum of a lone token.
var LoneDownKernel = &registry.Kernel[LoneDownArgs]{KernelName: "lone-down", Only: choose.HasLone, Emit: func(l registry.Layer) (*jit.Kernel[LoneDownArgs], error) {
	return LoneDown{l.Config}.Build()
}}
