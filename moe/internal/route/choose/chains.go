package choose

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// This file has the roles of [SmallBatchLogits].

// chainBytes is the size of a chain's part of a stage.
func (e chainPart) chainBytes() int { return e.depth * (weightBytes + tokenBytes) }

// stagesOf returns the number of stages of a chain.
func (e chainPart) stagesOf(chain ptx.U32) ptx.U32 {
	if e.lastStages == e.stages {
		return ptx.Uint(e.stages)
	}
	return ptx.Select(chain.EqI(e.all-1), ptx.Uint(e.lastStages), ptx.Uint(e.stages))
}

// kTile returns the first k-tile of stage i of one of the CTA's chains.
func (e chainPart) kTile(chain int, i ptx.U32) ptx.U32 {
	i = i.AddI(chain * e.stages)
	if e.Apart {
		i = e.chain.Mad(ptx.Uint(e.stages), i)
	}
	return i.MulI(e.depth)
}

// load is the load role, in one thread.
func (e chainPart) load(ring *pipeline.Ring) {
	k, at := e.k, ring.Producer()
	bytes := e.box.AddI(weightBytes).MulI(e.depth)
	terms, lines := e.terms()
	stages := ptx.Uint(e.stages)
	if e.Apart {
		stages = e.stagesOf(e.chain)
	}
	k.Range(stages, func(i ptx.U32) {
		s := at.Acquire()
		hasLast := ptx.True()
		if e.lastStages < e.stages && !e.Apart {
			hasLast = i.LtI(e.lastStages)
		}
		k.MbarrierArriveExpectTx(s.Full, bytes.MulI(e.chains-1).Add(ptx.Select(hasLast, bytes, ptx.Uint(0))))
		for chain := range e.chains {
			load := func() {
				kt, expert := e.kTile(chain, i), e.expert
				if terms > 1 {
					ofTerm := e.kTiles() / terms
					kt, expert = kt.RemI(ofTerm), expert.Add(kt.DivI(ofTerm).MulI(lines))
				}
				to := s.Data.At(chain * e.chainBytes())
				e.deep.Each(kt, expert, func(first int, at []ptx.U32) {
					k.TMALoad(to.At(first*weightBytes), e.w, s.Full, at...)
				})
				e.deep.Each(kt, e.first, func(first int, at []ptx.U32) {
					k.TMALoad(to.At(e.depth*weightBytes).Plus(e.box.MulI(first)), e.x, s.Full, at...)
				})
			}
			if chain == e.chains-1 {
				k.If(hasLast, load)
			} else {
				load()
			}
		}
		at.Advance()
	})
}

// chainMath is the math role: each chain has a warp.
type chainMath struct {
	chainPart
	chainRooms
	ring *pipeline.Ring
}

// run emits the role.
func (e chainMath) run() {
	k := e.k
	acc := k.Accumulators(tile.WarpSums)
	for _, sum := range acc {
		ptx.VarOf(sum).Set(ptx.Float(0))
	}
	product := tile.NewWarpProduct(k, e.Element, e.lane)
	chain := ptx.WarpOf(e.tid)
	own := chain.MulI(e.chainBytes())
	load := func(s pipeline.Stage, kt int) (x, w []ptx.U32) {
		part := s.Data.Plus(own)
		first := part.At(e.depth * weightBytes).Plus(e.box.MulI(kt))
		second := ptx.SharedAt(ptx.Select(e.box.EqI(tokenBytes), first.At(tokenGroup*tile.RowBytes).Addr(), e.zeros.Addr()))
		return product.A(first, second), product.B(part.At(kt * weightBytes))
	}
	at, release := e.ring.Consumer(), pipeline.NewReleaser(k, e.lane, 1)
	firstX, firstW := load(at.Wait(), 0)
	carriedX, carriedW := varsOf(k, firstX), varsOf(k, firstW)
	// Each k-tile is loaded to registers in the middle of the multiplications of the previous
	// k-tile.
	stage := func(more bool) {
		const half = tile.K / tile.KStep / 2
		x, w, s := valuesOf(carriedX), valuesOf(carriedW), at.Stage()
		for kt := range e.depth {
			product.Multiply(acc, x, w, 0, half)
			last := kt == e.depth-1
			if last {
				release.Release(s, ptx.True())
				at.Advance()
			}
			if last && more {
				s = at.Wait()
			}
			nowX, nowW := x, w
			if !last || more {
				x, w = load(s, (kt+1)%e.depth)
			}
			product.Multiply(acc, nowX, nowW, half, 2*half)
		}
		if more {
			ptx.SetAll(carriedX, x)
			ptx.SetAll(carriedW, w)
		}
	}
	if e.Apart {
		chain = e.chain
	}
	stages := e.stagesOf(chain)
	k.Range(stages.SubI(1), func(ptx.U32) { stage(true) })
	stage(false)
	if e.chains == 1 {
		e.store(acc)
		return
	}
	k.Range(ptx.Uint(e.stages).Sub(stages), func(ptx.U32) { // the last chain may have fewer stages; for the missing ones it only releases the ring's stages
		release.Release(at.Wait(), ptx.True())
		at.Advance()
	})
	e.join(acc, chain)
}

// chainSumsBytes is the size of a chain's sums.
const chainSumsBytes = 32 * tile.WarpSums * 4

// join adds the sums of the chains in the first chain's warp, and stores the result.
func (e chainMath) join(acc []ptx.F32, chain ptx.U32) {
	k := e.k
	mine := e.partial.Plus(e.lane.MulI(tile.WarpSums * 4))
	ptx.StShared(mine.Plus(chain.MulI(chainSumsBytes)), acc...)
	e.meet.Sync(ptx.Uint(0))
	k.If(chain.EqI(0), func() {
		sums := []ptx.F32{ptx.Float(0), ptx.Float(0), ptx.Float(0), ptx.Float(0)}
		for chain := range e.chains {
			for i, sum := range ptx.LdSharedVec[ptx.F32](mine.At(chain*chainSumsBytes), tile.WarpSums) {
				sums[i] = sums[i].Add(sum)
			}
		}
		e.store(sums)
	})
}

func varsOf(k *ptx.Kernel, of []ptx.U32) []*ptx.Var[ptx.U32] {
	vars := make([]*ptx.Var[ptx.U32], len(of))
	for i, v := range of {
		vars[i] = ptx.NewVar(k, v)
	}
	return vars
}

func valuesOf(vars []*ptx.Var[ptx.U32]) (of []ptx.U32) {
	for _, v := range vars {
		of = append(of, v.Get())
	}
	return of
}

// store writes the thread's sums: those of two neighbouring experts for each of two tokens. The two
// tokens are one group of 8 apart.
func (e chainPart) store(acc []ptx.F32) {
	k, bytes := e.k, int(e.Written.Bytes())
	for i, sum := range acc {
		token, expert := e.first.Add(e.lane.ShrI(2)).AddI(tokenGroup*(i/2)), e.expert.Add(e.lane.AndI(3).MulI(2)).AddI(i%2)
		k.If(token.Lt(e.tokens).And(expert.LtI(e.NumExperts)), func() {
			if e.Bias && !e.Apart {
				sum = sum.Add(biasOf(e.bias, expert, e.NumExperts))
			}
			storeLogit(k, e.Written, e.logits.Index(token, bytes*e.NumExperts).Index(expert, bytes), sum)
		})
	}
}
