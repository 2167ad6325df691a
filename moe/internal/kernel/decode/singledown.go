package decode

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
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

// SingleDown is the down-projection of a single token and the sum over its experts: O = Σ_k
// score[k]·(W2[k]·A[k] + b2[k]). Each expert's product is rounded, and the products are added in
// the order of the slots. An item is the same 8 rows of every expert, so a CTA has all terms of its
// sums. A CTA polls the chosen experts and loads its first weights before the up-projection has
// ended. If CTAs of both products share an SM, these loads start after most loads of the
// up-projection.
type SingleDown struct{ spec.Config }

// SingleDownArgs are the arguments of [SingleDown]. Tensors have the layer's
// type unless another is given.
type SingleDownArgs struct {
	// Chosen [K+1] u32 comes from SingleUp. The first K words have the expert of each slot plus 1,
	// or 0 before it is chosen. The last word counts how much of the up-projection has started all
	// its loads of weights: CTAs of SingleUp, or slices of SingleUnitsUp.
	Chosen driver.DevicePtr
	// Scores [1, K] f32 are the slots' scores.
	Scores driver.DevicePtr
	// A is the activation, a row for each slot, in the layout of [weights.A].
	A driver.DevicePtr
	// W2 [E, d, n] are the weights.
	W2 driver.DevicePtr
	// B2 [E, d] is the bias of W2.
	B2 driver.DevicePtr
	// With a table of adapters, AdapterIDs [1] i32 and Scales [N] f32 have the token's adapter and the
	// adapters' scales, LoraB2 [N·E, d, r] has the second factors, and U has the rows of
	// [weights.SingleU].
	AdapterIDs, Scales, LoraB2, U driver.DevicePtr
	// SharedRow [1, d] is the shared experts' output. SharedScore [1] f32 is its score.
	SharedRow   driver.DevicePtr
	SharedScore driver.DevicePtr
	// O [1, d] is the output.
	O driver.DevicePtr
}

// Build emits the kernel.
func (d SingleDown) Build() (*jit.Kernel[SingleDownArgs], error) {
	k := jit.NewBuilder[SingleDownArgs]("moe_single_down", singleThreads, 1)
	shape := newSingleShape(d.Hidden/stripRows, d.TopK, d.Intermediate, (d.TopK+7)/8*8)
	k.SetGrid(func(_ *SingleDownArgs, sms int) gpu.Dim3 { return singleGrid(shape.items, sms) })
	thread := newSingleThread(k.Kernel)

	// Operands.
	m := weights.W2(d.Config)
	chosen, scores := k.Ptr(&k.Args.Chosen), k.Ptr(&k.Args.Scores)
	a := k.Map(&k.Args.A, func(g *SingleDownArgs) gpu.TensorMap {
		return shape.tokenMap(g.A, d.TopK, weights.A(d.Config).Elements())
	})
	w2 := k.Map(&k.Args.W2, func(g *SingleDownArgs) gpu.TensorMap { return shape.stripMap(m, g.W2) })
	terms := d.terms(k)
	adapter := d.singleAdapter(k, thread)

	// Ring "ab" holds stages of W2 and A. The epilogue has buffers for the scores, and for the rows
	// of a pass.
	cta, p := thread.cta, newSingle(thread, d.Config, shape, ringsOf(d.Config).down)
	s := singleSum{
		single: p, singleTerms: terms, adapter: adapter, scores: cta.Shared("scores", 4*d.TopK, 4),
		y: cta.Shared("y", tile.ElementBytes*p.most*stripRows*d.TopK, 4), meet: cta.NamedBarriers("y", 1, pipeline.WarpgroupThreads),
	}
	mine := p.begin()
	s.receive(chosen)

	// Roles "math" and "load". The epilogue sums over the experts and stores O.
	piece := func(item, slot ptx.U32) loadPiece {
		expert, row := p.expert(slot), item.MulI(stripRows)
		return func(to, full ptx.Shared, kt ptx.U32) { p.loadStrip(m, w2, to, full, row, kt, expert) }
	}
	loads := singleLoads{pieces: d.TopK, piece: piece, token: a, beforeWeights: nothing, afterWeights: nothing, beforeToken: func() {
		k.GridDepWait()
		k.GridDepLaunch()
	}}
	if overlaps(d.Config) {
		loads.beforeWeights = func() { s.waitForUp(chosen.At(4 * d.TopK)) }
	}
	mine.run(loads, singleSums{start: s.start, store: s.store, ahead: s.find, before: func() {
		k.GridDepWait()
		s.loadScores(scores)
		s.loadU()
	}})
	return k.Build()
}

// singleTerms has the address of O, and of the tensors that are added to O besides the products.
type singleTerms struct{ o, b2, shared, sharedScore ptx.Global }

func (d SingleDown) terms(k *jit.Builder[SingleDownArgs]) singleTerms {
	t := singleTerms{o: k.Ptr(&k.Args.O)}
	if d.Bias {
		t.b2 = k.Ptr(&k.Args.B2)
	}
	if d.SharedExperts > 0 {
		t.shared = k.Ptr(&k.Args.SharedRow)
		if d.SharedGate {
			t.sharedScore = k.Ptr(&k.Args.SharedScore)
		}
	}
	return t
}

// singleSum is the epilogue of SingleDown. It rounds each expert's sums, and adds the experts.
type singleSum struct {
	*single
	singleTerms
	adapter *singleAdapter // nil without a table of adapters
	// scores has the score of each slot. y has the rows of a pass, for every slot. meet is the
	// barrier of the threads that write and read y.
	scores, y ptx.Shared
	meet      pipeline.NamedBarriers
}

// receive waits for the chosen experts, in the lanes of the first warp. This ends, because all CTAs
// of the kernel that chooses are running when this kernel starts.
func (s singleSum) receive(chosen ptx.Global) {
	k := s.k
	k.If(k.TidX().LtI(s.TopK), func() {
		id := ptx.NewVar(k, ptx.Uint(0))
		at := chosen.Index(k.TidX(), 4)
		k.Loop(func() {
			id.Set(ptx.LdGlobalAcquire(at))
			k.BreakIf(id.Get().NeI(0))
		})
		ptx.StShared(s.ids.Plus(k.TidX().ShlI(2)), id.Get().SubI(1))
	})
	k.BarSync(ptx.Uint(0))
}

// waitForUp makes a warp wait until half of the up-projection's CTAs have started all their loads
// of weights. Loads of this kernel that start earlier would delay the up-projection.
func (s singleSum) waitForUp(loaded ptx.Global) {
	k := s.k
	// Use the smaller number of CTAs, because either product may have fewer than the other.
	half := k.NctaidX().MinI(SingleUp{Config: s.Config}.items()).AddI(1).ShrI(1)
	k.If(s.lane.EqI(0), func() {
		k.Loop(func() { k.BreakIf(ptx.LdGlobalAcquire(loaded).Ge(half)) })
	})
	k.BarWarpSync(ptx.Uint(ptx.FullMask))
}

// loadScores loads the scores into shared memory. A math warp does this while it would wait for its
// first stage. In the token's warp the load would delay A.
func (s singleSum) loadScores(scores ptx.Global) {
	s.k.If(s.lane.LtI(s.TopK), func() {
		ptx.StShared(s.scores.Plus(s.lane.ShlI(2)), ptx.LdGlobal[ptx.F32](scores.Index(s.lane, 4)))
	})
	s.k.BarWarpSync(ptx.Uint(ptx.FullMask))
}

// eachRow calls body for each of the thread's rows in a pass. pair is the number of a pair of
// strips, and half tells its upper (0) or lower (1) strip. In each group of four registers of the
// pair, the row's sums are registers 2·half and 2·half + 1. The parameter its is false for a row
// beyond the pass.
func (s singleSum) eachRow(first, n ptx.U32, body func(pair, half int, its ptx.Pred, slot, row ptx.U32)) {
	line := s.lane.ShrI(2)
	for i := range s.tiles() {
		for half := range 2 {
			strip := s.strip(i, half)
			item, slot := strip.DivI(s.TopK), strip.RemI(s.TopK)
			body(i, half, item.Lt(n), slot, item.Min(n.SubI(1)).MulI(stripRows).Add(line))
		}
	}
}

// start sets the sums of a pass to the biases, or to 0 without biases.
func (s singleSum) start(first, n ptx.U32, acc [][]ptx.F32) {
	s.loadFactors(first, n)
	s.eachRow(first, n, func(pair, half int, _ ptx.Pred, slot, row ptx.U32) {
		from := ptx.Float(0)
		if s.Bias {
			from = weights.B2(s.Config).Column([]ptx.Global{s.b2}, s.expert(slot), first.MulI(stripRows).Add(row))[0]
		}
		for j := 2 * half; j < len(acc[pair]); j += 4 {
			ptx.VarOf(acc[pair][j]).Set(from)
			ptx.VarOf(acc[pair][j+1]).Set(from)
		}
	})
}

// store adds the experts of each row of a pass, and stores O. One thread adds one row.
func (s singleSum) store(first, n ptx.U32, acc [][]ptx.F32) {
	k, top := s.k, s.TopK
	column := s.lane.AndI(3).MulI(2)
	acc = s.adapted(acc)
	s.eachRow(first, n, func(pair, half int, its ptx.Pred, slot, row ptx.U32) {
		to := s.y.Plus(row.Mad(ptx.Uint(top), slot).ShlI(1))
		for j := 0; j < len(acc[pair])/4; j++ {
			for i := range 2 {
				k.If(its.And(slot.Eq(column.AddI(8*j+i))), func() { ptx.StShared(to, element.Of(s.Config).Round(acc[pair][4*j+2*half+i])) })
			}
		}
	})
	s.meet.Sync(ptx.Uint(0))
	k.If(k.TidX().Lt(n.MulI(stripRows)), func() { s.add(k.TidX, func() ptx.U32 { return first.MulI(stripRows).Add(k.TidX()) }) })
	s.meet.Sync(ptx.Uint(0)) // the next pass overwrites y
}

// add adds the experts of a row of y in one thread, and stores a row of O.
func (s singleSum) add(ofY, ofO func() ptx.U32) {
	sum := ptx.Float(0)
	for slot := range s.TopK {
		y := element.Of(s.Config).Wide(ptx.LdShared[ptx.B16](s.y.Plus(ofY().MulI(tile.ElementBytes * s.TopK)).At(tile.ElementBytes * slot)))
		sum = y.Fma(ptx.LdShared[ptx.F32](s.scores.At(4*slot)), sum)
	}
	row := ofO()
	if s.SharedExperts > 0 {
		score := ptx.Float(1)
		if s.SharedGate {
			score = ptx.LdGlobal[ptx.F32](s.sharedScore)
		}
		sum = element.Of(s.Config).Wide(ptx.LdGlobal[ptx.B16](s.shared.Index(row, tile.ElementBytes))).Fma(score, sum)
	}
	ptx.StGlobal(s.o.Index(row, tile.ElementBytes), element.Of(s.Config).Round(sum))
}

// SingleDownKernel is the down-projection of a single token, and the sum over its experts.
var SingleDownKernel = &registry.Kernel[SingleDownArgs]{KernelName: "single-down", Only: choose.HasSingle, Emit: func(l registry.Layer) (*jit.Kernel[SingleDownArgs], error) {
	return SingleDown{l.Config}.Build()
}}
