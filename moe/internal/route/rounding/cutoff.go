package rounding

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/ptx"
)

// Cutoff decides how many tokens each expert gets, and finds the key of the last of them. A key
// tells how much an expert prefers a token, see [Keys]. One CTA handles one expert. It finds the
// key by a radix select, from the highest digit down: among the keys that have the higher digits
// found so far, it counts how often each value of the next digit occurs.
type Cutoff struct {
	NumExperts int
	spec.Rounding
}

const (
	cutoffThreads = 1024
	cutoffWarps   = cutoffThreads / lanes.Count
	// digits is the number of values of the widest digit.
	digits = 1 << 11
	// mostKept is the number of keys that the CTA's shared memory can hold.
	mostKept = 8192
	// CutoffBytes is the size of an expert's cutoff, four words: the number of its tokens, the key
	// of the last of them, the number of its tokens that have exactly that key, and 0.
	CutoffBytes = 16
)

// cutoffDigits are the digits of a key below its highest bit. The highest bit needs no search: the
// number of tokens that chose the expert determines it. The first digit is wide, so that the scores
// spread over many counters and lanes seldom add to the same counter.
var cutoffDigits = [...]digit{{20, 11}, {10, 10}, {0, 10}}

// digit is the bits [shift, shift+bits) of a key.
type digit struct{ shift, bits int }

// CutoffArgs are the arguments of [Cutoff].
type CutoffArgs struct {
	// Keys [E, T] u32 comes from [Keys], and Counts [Ranges, E] u32 from the router.
	Keys, Counts driver.DevicePtr
	// Cutoffs [E, 4] u32 is an output: the cutoff of each expert.
	Cutoffs driver.DevicePtr
	Tokens  int
	Ranges  int
	// Capacity comes from [spec.Rounding.CapacityOf]. SeedLow and SeedHigh are the halves of the
	// seed.
	Capacity          int
	SeedLow, SeedHigh int
}

// Seed sets the seed of the random draws of the rule RoundStochastic.
func (a *CutoffArgs) Seed(seed uint64) { a.SeedLow, a.SeedHigh = int(uint32(seed)), int(seed>>32) }

// cutoff is the state of a Cutoff while its code is emitted.
type cutoff struct {
	Cutoff
	k                          *ptx.Kernel
	tid, expert, tokens        ptx.U32
	keys                       ptx.Global
	capacity, seedLow, seedTop ptx.U32
	cutoffRoom
}

// cutoffRoom is the shared memory of a CTA.
type cutoffRoom struct {
	counts, hist, state, sums ptx.Shared
	kept, cursor              ptx.Shared // kept keys, and the number of them
}

func newCutoffRoom(cta *pipeline.CTA, experts int) cutoffRoom {
	return cutoffRoom{
		counts: cta.Shared("counts", 4*experts, 16), hist: cta.Shared("hist", 4*digits, 16),
		state: cta.Shared("state", 16, 16), sums: cta.Shared("sums", 8*cutoffWarps, 16),
		kept: cta.Shared("kept", 4*mostKept, 16), cursor: cta.Shared("cursor", 4, 4),
	}
}

// Build emits the kernel.
func (c Cutoff) Build() (*jit.Kernel[CutoffArgs], error) {
	k := jit.NewBuilder[CutoffArgs]("moe_rounding_cutoff", cutoffThreads, 1)
	k.CTAs(func(*CutoffArgs) int { return c.NumExperts })

	// Operands.
	keys, counts, cutoffs := k.Ptr(&k.Args.Keys), k.Ptr(&k.Args.Counts), k.Ptr(&k.Args.Cutoffs)
	tid, expert := k.TidX(), k.CtaidX()
	tokens, ranges := k.U32(&k.Args.Tokens), k.U32(&k.Args.Ranges)
	capacity, seedLow, seedTop := k.U32(&k.Args.Capacity), k.U32(&k.Args.SeedLow), k.U32(&k.Args.SeedHigh)

	// Shared memory has the experts' counts, the histogram of a digit, and the kept keys.
	room := newCutoffRoom(pipeline.NewCTA(k.Kernel), c.NumExperts)
	order.ClearWords(k.Kernel, room.counts, c.NumExperts, tid, cutoffThreads)
	k.BarSync(ptx.Uint(0))
	k.GridDepWait()
	k.GridDepLaunch()

	// All threads have one role: they add the expert's counts, and decide its cutoff.
	e := cutoff{
		Cutoff: c, k: k.Kernel, tid: tid, expert: expert, tokens: tokens, keys: rowOf(keys, expert, tokens),
		cutoffRoom: room, capacity: capacity, seedLow: seedLow, seedTop: seedTop,
	}
	e.addCounts(counts, ranges)
	k.BarSync(ptx.Uint(0))
	n, last, ties := e.decide()
	k.If(e.tid.EqI(0), func() {
		ptx.StGlobal(cutoffs.Index(e.expert, CutoffBytes), n, last, ties, ptx.Uint(0))
	})
	return k.Build()
}

// addCounts sums this expert's counts over the ranges. The rule RoundBalanced also needs
// the sums of the experts before this one.
func (e *cutoff) addCounts(counts ptx.Global, ranges ptx.U32) {
	k := e.k
	add := func(expert, row ptx.U32) {
		n := ptx.LdGlobal[ptx.U32](counts.Index(row, 4*e.NumExperts).Index(expert, 4))
		k.RedSharedAdd(e.count(expert), n)
	}
	if e.Rule != spec.RoundBalanced {
		k.For(e.tid, ranges, ptx.Uint(cutoffThreads), func(row ptx.U32) { add(e.expert, row) })
		return
	}
	warp, lane := k.Warp(), k.Lane()
	k.For(warp, ranges, ptx.Uint(cutoffWarps), func(row ptx.U32) {
		k.For(lane, e.expert.AddI(1), ptx.Uint(lanes.Count), func(expert ptx.U32) { add(expert, row) })
	})
}

// count returns the address of an expert's count in shared memory.
func (e *cutoff) count(expert ptx.U32) ptx.Shared { return e.counts.Plus(expert.ShlI(2)) }

// between returns the multiples of the tile next to f, below and above. If the upper multiple
// exceeds the number of tokens, both results are the lower multiple.
func (e *cutoff) between(f ptx.U32) (down, up ptx.U32) {
	tile := e.Rows()
	down = f.DivI(tile).MulI(tile)
	up = f.AddI(tile - 1).DivI(tile).MulI(tile)
	return down, ptx.Select(up.Gt(e.tokens), down, up)
}

// decide returns the expert's cutoff: the number of its tokens, the key of the last of them, and
// the number of its tokens that have this key. All threads take part.
func (e *cutoff) decide() (n, last, ties ptx.U32) {
	f := ptx.LdShared[ptx.U32](e.count(e.expert)) // number of tokens that chose the expert
	down, up := e.between(f)
	switch e.Rule {
	case spec.RoundMass:
		return e.mass(f, down, up)
	case spec.RoundNearest:
		n = ptx.Select(up.Sub(f).Lt(f.Sub(down)).And(up.Gt(down)), up, down)
	case spec.RoundStochastic:
		n = ptx.Select(e.draw().MulHiI(e.Rows()).Lt(f.Sub(down)), up, down)
	case spec.RoundBalanced:
		n = e.balanced()
	case spec.RoundUp:
		n = up
	case spec.RoundDown:
		n = down
	case spec.ExpertChoice:
		n = ptx.Select(e.capacity.EqI(0), f, e.capacity)
	case spec.CapacityDrop:
		n = f.Min(e.capacity)
	}
	last, ties, _ = e.nth(f, n)
	return n, last, ties
}

// balanced decides by the rule RoundBalanced. The rule goes through the experts in order, so the
// CTA repeats it for the experts before this one.
func (e *cutoff) balanced() ptx.U32 {
	k := e.k
	magnitude := func(x ptx.U32) ptx.U32 {
		return ptx.Select(x.Signed().Lt(ptx.Int(0)), ptx.Uint(0).Sub(x), x)
	}
	k.If(e.tid.EqI(0), func() {
		drift, n := ptx.NewVar(k, ptx.Uint(0)), ptx.NewVar(k, ptx.Uint(0))
		k.For(ptx.Uint(0), e.expert.AddI(1), ptx.Uint(1), func(expert ptx.U32) {
			f := ptx.LdShared[ptx.U32](e.count(expert))
			down, up := e.between(f)
			ifDown, ifUp := down.Sub(f).Add(drift.Get()), up.Sub(f).Add(drift.Get())
			goesUp := magnitude(ifUp).Lt(magnitude(ifDown))
			n.Set(ptx.Select(goesUp, up, down))
			drift.Set(ptx.Select(goesUp, ifUp, ifDown))
		})
		ptx.StShared(e.state.At(12), n.Get())
	})
	k.BarSync(ptx.Uint(0))
	return ptx.LdShared[ptx.U32](e.state.At(12))
}

// draw is [spec.Rounding.Draw] for the expert.
func (e *cutoff) draw() ptx.U32 {
	mix := func(x ptx.U32) ptx.U32 {
		x = x.Xor(x.ShrI(16)).MulI(spec.MixFirst)
		x = x.Xor(x.ShrI(13)).MulI(spec.MixSecond)
		return x.Xor(x.ShrI(16))
	}
	return mix(mix(e.seedLow.Add(e.expert.AddI(1).MulI(spec.DrawStep))).Xor(e.seedTop))
}

// eachKey runs body for the thread's share of the keys. valid is false past the last key.
// All lanes of a warp take part.
func (e *cutoff) eachKey(body func(key ptx.U32, valid ptx.Pred)) {
	eachKeys(e.k, e.keys, ptx.Uint(0), e.tokens, e.tid, cutoffThreads, func(token ptx.U32, keys []ptx.U32) {
		for i, key := range keys {
			body(key, token.AddI(i).Lt(e.tokens))
		}
	})
}

// nth returns the n-th largest key, how many of the n largest keys equal this key, and how many of
// all keys do. For n = 0 the returned key is above every other key. The parameter f is the number
// of tokens that chose the expert.
func (e *cutoff) nth(f, n ptx.U32) (last, ties, equal ptx.U32) {
	k := e.k
	key, rest, same := ptx.NewVar(k, ptx.Uint(0)), ptx.NewVar(k, n), ptx.NewVar(k, ptx.Uint(0))
	if e.Rule != spec.ExpertChoice {
		// The f keys whose highest bit is set are larger than all other keys.
		chosen := n.Le(f)
		key.Set(ptx.Select(chosen, ptx.Uint(chosenBit), ptx.Uint(0)))
		rest.Set(ptx.Select(chosen, n, n.Sub(f)))
	}
	find := func(d digit, each func(body func(key ptx.U32, valid ptx.Pred))) {
		order.ClearWords(k, e.hist, 1<<d.bits, e.tid, cutoffThreads)
		k.BarSync(ptx.Uint(0))
		each(func(of ptx.U32, valid ptx.Pred) {
			e.countDigit(of.ShrI(d.shift).AndI(1<<d.bits-1), valid.And(of.Xor(key.Get()).ShrI(d.shift+d.bits).EqI(0)))
		})
		k.BarSync(ptx.Uint(0))
		e.findDigit(key.Get(), rest.Get(), d.shift, 1<<d.bits/cutoffThreads)
		k.BarSync(ptx.Uint(0))
		s := ptx.LdSharedVec[ptx.U32](e.state, 4)
		key.Set(s[0])
		rest.Set(s[1])
		same.Set(s[2])
		k.BarSync(ptx.Uint(0))
	}
	first, others := cutoffDigits[0], cutoffDigits[1:]
	k.IfElse(n.EqI(0), func() { key.Set(ptx.Uint(0xffffffff)) }, func() {
		find(first, e.eachKey)
		k.IfElse(same.Get().LeI(mostKept), func() {
			e.keep(key.Get().ShrI(first.shift), first.shift)
			kept := same.Copy() // a copy, because find changes same with each digit
			for _, d := range others {
				find(d, func(body func(ptx.U32, ptx.Pred)) { e.eachKept(kept, body) })
			}
		}, func() {
			for _, d := range others {
				find(d, e.eachKey)
			}
		})
	})
	return key.Get(), rest.Get(), same.Get()
}

// keep copies keys to shared memory, in any order. These are the keys whose bits from bit `shift`
// on equal start.
func (e *cutoff) keep(start ptx.U32, shift int) {
	k := e.k
	order.ClearWords(k, e.cursor, 1, e.tid, cutoffThreads)
	k.BarSync(ptx.Uint(0))
	e.eachKey(func(key ptx.U32, valid ptx.Pred) {
		k.If(valid.And(key.ShrI(shift).Eq(start)), func() {
			ptx.StShared(e.kept.Plus(k.AtomSharedAdd(e.cursor, ptx.Uint(1)).ShlI(2)), key)
		})
	})
	k.BarSync(ptx.Uint(0))
}

// eachKept is eachKey for the n keys in shared memory.
func (e *cutoff) eachKept(n ptx.U32, body func(key ptx.U32, valid ptx.Pred)) {
	k := e.k
	k.For(ptx.Uint(0), n, ptx.Uint(cutoffThreads), func(first ptx.U32) {
		at, key := first.Add(e.tid), ptx.NewVar(k, ptx.Uint(0))
		k.If(at.Lt(n), func() { key.Set(ptx.LdShared[ptx.U32](e.kept.Plus(at.ShlI(2)))) })
		body(key.Get(), at.Lt(n))
	})
}

// countDigit adds one to the counter of each lane's digit. If all lanes have the same digit, one
// lane adds for all of them. This happens often with an untrained router, whose scores hardly
// differ.
func (e *cutoff) countDigit(of ptx.U32, valid ptx.Pred) {
	k, all := e.k, ptx.Uint(ptx.FullMask)
	at := e.hist.Plus(of.ShlI(2))
	ballot := k.VoteBallot(valid.And(of.Eq(of.ShflIdx(ptx.Uint(0)))), all)
	one := ballot.Eq(all)
	k.If(valid.And(one.Not().Or(k.LanemaskLt().EqI(0))), func() {
		k.RedSharedAdd(at, ptx.Select(one, ptx.Uint(lanes.Count), ptx.Uint(1)))
	})
}

// findDigit finds the digit of the n-th largest key. The parameter rest is n. Each thread has
// `each` digits, and the threads go from the largest digit down. One thread writes three words to
// state: the key with this digit, the key's rank among the keys with this digit, and the number of
// these keys.
func (e *cutoff) findDigit(key, rest ptx.U32, shift, each int) {
	k := e.k
	warp, lane := k.Warp(), k.Lane()
	n := make([]ptx.U32, each)
	sum := ptx.Uint(0)
	top := ptx.Uint(each*cutoffThreads - 1).Sub(e.tid.MulI(each))
	for i := range n {
		n[i] = ptx.LdShared[ptx.U32](e.hist.Plus(top.Sub(ptx.Uint(i)).ShlI(2)))
		sum = sum.Add(n[i])
	}
	up := lanes.PrefixSum(sum, lane)
	k.If(lane.EqI(lanes.Count-1), func() { ptx.StShared(e.sums.Plus(warp.ShlI(2)), up) })
	k.BarSync(ptx.Uint(0))
	ofWarp := ptx.LdShared[ptx.U32](e.sums.Plus(lane.ShlI(2)))
	before := lanes.PrefixSum(ofWarp, lane).Sub(ofWarp).ShflIdx(warp).Add(up).Sub(sum)
	for i := range n {
		after := before.Add(n[i])
		k.If(before.Lt(rest).And(after.Ge(rest)), func() {
			digit := top.Sub(ptx.Uint(i))
			ptx.StShared(e.state, key.Or(digit.ShlI(shift)), rest.Sub(before), n[i], ptx.Uint(0))
		})
		before = after
	}
}

// mass decides by the rule RoundMass whether an expert with f tokens gets down or up tokens, the
// multiples of the tile below and above f. It compares the scores of the tokens whose ranks lie
// between both. It returns the number n of tokens, the key of the last one, and the number of tokens
// with that key that the expert gets.
func (e *cutoff) mass(f, down, up ptx.U32) (n, last, ties ptx.U32) {
	k := e.k
	lastDown, tiesDown, equalDown := e.nth(f, down)
	lastUp, tiesUp, _ := e.nth(f, up)
	value := func(key ptx.U32) ptx.F32 { return key.AndI(scoreBits).AsF32() }
	zero := ptx.Float(0)
	kept, added := ptx.NewVar(k, zero), ptx.NewVar(k, zero)
	none := down.EqI(0)
	e.eachKey(func(key ptx.U32, valid ptx.Pred) {
		chosen := key.Ge(ptx.Uint(chosenBit))
		kept.Set(kept.Get().Add(ptx.Select(valid.And(chosen).And(key.Lt(lastDown).Or(none)), value(key), zero)))
		added.Set(added.Get().Add(ptx.Select(valid.And(chosen.Not()).And(key.Gt(lastUp)), value(key), zero)))
	})
	sums := [2]ptx.F32{lanes.Sum(kept.Get()), lanes.Sum(added.Get())}
	k.If(k.Lane().EqI(0), func() { ptx.StShared(e.sums.Plus(k.Warp().ShlI(3)), sums[0], sums[1]) })
	k.BarSync(ptx.Uint(0))
	top := ptx.Select(none, zero, equalDown.Sub(tiesDown).F32().Mul(value(lastDown)))
	all := tiesUp.F32().Mul(value(lastUp))
	for w := range cutoffWarps {
		of := ptx.LdSharedVec[ptx.F32](e.sums.At(8*w), 2)
		top, all = top.Add(of[0]), all.Add(of[1])
	}
	all = all.Add(top)
	goesUp := e.draw().F32().Mul(ptx.Float(0x1p-32)).Mul(all).Lt(top).And(up.Gt(down))
	return ptx.Select(goesUp, up, down), ptx.Select(goesUp, lastUp, lastDown), ptx.Select(goesUp, tiesUp, tiesDown)
}

// CutoffKernel computes the cutoffs of layers that round.
var CutoffKernel = &registry.Kernel[CutoffArgs]{KernelName: "cutoff", Only: spec.Config.Rounds, Emit: func(l registry.Layer) (*jit.Kernel[CutoffArgs], error) {
	return Cutoff{NumExperts: l.NumExperts, Rounding: l.Rounding}.Build()
}}
