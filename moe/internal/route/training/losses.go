package training

import (
	"math"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/moe/internal/route/scores"
	"sonicmoe/ptx"
)

// Losses computes two losses from the logits [T, E] and the experts' counts, and their gradients
// with respect to the logits:
//
//	balance = E/(K·S·T) · Σ_t s_t     s_t = Σ_e count_e·p_te, p = softmax of all logits
//	z-loss  = 1/T · Σ_t lse_t²        lse_t = log Σ_e exp l_te
//	dlogit_te = balance' · p_te·(count_e - s_t) + z' · p_te·lse_t
//
// S is the length of a sequence; a call with a single sequence has S = T. count_e is the number of
// tokens of token t's sequence that chose expert e. balance' and z' are the coefficients Balance
// and ZLoss. One warp handles a token, and one CTA handles one or several ranges of tokens. A range
// lies in one sequence, and its CTA counts the whole sequence. The sums over tokens are FP32, in a
// fixed order within a CTA and then over the CTAs, see [LossSum].
type Losses struct {
	NumExperts, TopK int
	Logits           spec.Type
	// Part is the part of the work that the kernel does if the tokens are spread over ranks.
	Part LossPart
}

// LossPart is a part of the work of [Losses]. The zero value is all of it, on one device.
type LossPart uint8

const (
	_ LossPart = iota
	// EachToken writes the gradients and s_t and lse_t of a rank's tokens, and no sums.
	EachToken
	// SumTokens adds s_t and lse_t² of the tokens of all ranks, in the order of one device.
	SumTokens
)

const (
	lossWarps   = 8
	lossThreads = lanes.Count * lossWarps
)

// LossesArgs are the arguments of [Losses].
type LossesArgs struct {
	// Logits [T, E] are in the layer's format. Offsets [E+1] u32 comes from [order.Plan].
	Logits  driver.DevicePtr
	Offsets driver.DevicePtr
	// If ExpertIDs [T, K] i32 is not 0, the kernel counts the experts of each sequence itself.
	// Otherwise it takes the counts from Offsets.
	ExpertIDs driver.DevicePtr
	// DLogits [T, E] f32 is an output unless 0. AddDLogits [T, E] f32, unless 0, is added
	// to it; it may be the same tensor.
	AddDLogits driver.DevicePtr
	DLogits    driver.DevicePtr
	// Partials [CTAs, 2] f32 is an output: Σ s_t and Σ lse_t² over the tokens of each CTA.
	Partials driver.DevicePtr
	// Balance is the caller's coefficient of the balance loss, multiplied by E/(K·S·T). ZLoss is
	// the caller's coefficient of the z-loss, multiplied by 2/T.
	Balance, ZLoss float32
	// Values [T, 2] f32 has s_t and lse_t. EachToken writes it, and SumTokens reads it.
	Values driver.DevicePtr
	// With EachToken, the rank's tokens are Count of the T tokens, from First on. Logits, DLogits,
	// AddDLogits and Values have these tokens only. ExpertIDs has all T tokens.
	First, Count int
	Sequences
}

// Sequences splits T tokens into consecutive sequences of equal length, and each sequence into
// ranges.
type Sequences struct {
	// Length is the number of tokens in a sequence: a divisor of T.
	Length int
	order.TokenRanges
}

// SequencesOf splits sequences of a given length into ranges for the SMs.
func SequencesOf(length, tokens, sms int) Sequences {
	if length == tokens {
		return Sequences{length, order.RangesOf(tokens, sms)}
	}
	parts := max(1, sms*length/tokens)
	return Sequences{length, order.TokenRanges{Tokens: tokens, PerCTA: (length + parts - 1) / parts}}
}

// CTAs returns the number of CTAs, at most one for each SM. The CTAs take the ranges in
// turns.
func (s *Sequences) CTAs(sms int) int {
	return min(sms, s.Tokens/s.Length*s.parts())
}

// parts returns the number of ranges in a sequence.
func (s *Sequences) parts() int { return (s.Length + s.PerCTA - 1) / s.PerCTA }

// PartialBytes returns the size of Partials on a chip with the given number of SMs.
func (l Losses) PartialBytes(sms int) int64 { return 8 * int64(sms) }

// losses is the state of a Losses while its code is emitted.
type losses struct {
	Losses
	k                   *ptx.Kernel
	tid, lane           ptx.U32
	counts              ptx.Shared // [E] f32
	logits, add, write  ptx.Global
	balance, zLoss      ptx.F32
	balanceSum, zSquare *ptx.Var[ptx.F32]
	values              ptx.Global
	first               ptx.U32 // the rank's first token
}

// Build emits the kernel.
func (l Losses) Build() (*jit.Kernel[LossesArgs], error) {
	k := jit.NewBuilder[LossesArgs]("moe_losses"+[...]string{"", "_each", "_sum"}[l.Part], lossThreads, 1)
	k.SetGrid(func(a *LossesArgs, sms int) gpu.Dim3 { return gpu.Dim3{X: a.CTAs(sms)} })
	e := losses{Losses: l, k: k.Kernel, logits: k.Ptr(&k.Args.Logits)}
	offsets, ids := k.Ptr(&k.Args.Offsets), k.Ptr(&k.Args.ExpertIDs)
	e.add, e.write = k.Ptr(&k.Args.AddDLogits), k.Ptr(&k.Args.DLogits)
	partials := k.Ptr(&k.Args.Partials)
	e.balance, e.zLoss = k.F32(&k.Args.Balance), k.F32(&k.Args.ZLoss)
	tokens, perCTA, length := k.U32(&k.Args.Tokens), k.U32(&k.Args.PerCTA), k.U32(&k.Args.Length)
	var own ptx.U32
	if l.Part != 0 {
		e.values, e.first, own = k.Ptr(&k.Args.Values), k.U32(&k.Args.First), k.U32(&k.Args.Count)
	}

	tid := k.TidX()
	warp := k.Warp()
	e.tid, e.lane = tid, k.Lane()
	cta := pipeline.NewCTA(k.Kernel)
	e.counts = cta.Shared("counts", 4*l.NumExperts, 16)
	sums := cta.Shared("sums", 8*lossWarps, 16)
	k.GridDepWait()
	k.GridDepLaunch()
	e.balanceSum, e.zSquare = ptx.NewVar(k.Kernel, ptx.Float(0)), ptx.NewVar(k.Kernel, ptx.Float(0))
	parts := length.Add(perCTA).SubI(1).Div(perCTA)
	k.For(k.CtaidX(), tokens.Div(length).Mul(parts), k.NctaidX(), func(nth ptx.U32) {
		of := nth.Div(parts)
		first := of.Mul(length)
		if l.Part != SumTokens {
			e.readCounts(offsets, ids, first, length)
		}
		from := first.Add(nth.Sub(of.Mul(parts)).Mul(perCTA))
		to := from.Add(perCTA).Min(first.Add(length))
		if l.Part == EachToken {
			from, to = from.Max(e.first), to.Min(e.first.Add(own))
		}
		k.For(from.Add(warp), to, ptx.Uint(lossWarps), e.token)
	})
	if l.Part == EachToken {
		return k.Build()
	}

	k.If(e.lane.EqI(0), func() { ptx.StShared(sums.Plus(warp.ShlI(3)), e.balanceSum.Get(), e.zSquare.Get()) })
	k.BarSync(ptx.Uint(0))
	k.If(tid.EqI(0), func() {
		total := [2]ptx.F32{ptx.Float(0), ptx.Float(0)}
		for w := range lossWarps {
			of := ptx.LdSharedVec[ptx.F32](sums.At(8*w), 2)
			total[0], total[1] = total[0].Add(of[0]), total[1].Add(of[1])
		}
		ptx.StGlobal(partials.Index(k.CtaidX(), 8), total[0], total[1])
	})
	return k.Build()
}

// readCounts writes the counts of the experts to shared memory, for the sequence whose first token is
// first.
func (e *losses) readCounts(offsets, ids ptx.Global, first, length ptx.U32) {
	k, tid := e.k, e.tid
	k.BarSync(ptx.Uint(0)) // every warp has read the counts of the previous range
	k.IfElse(ids.Given(), func() {
		order.ClearWords(k, e.counts, e.NumExperts, tid, lossThreads)
		k.BarSync(ptx.Uint(0))
		end := first.Add(length).MulI(e.TopK)
		order.CountIDs(k, e.counts, e.NumExperts, ids, first.MulI(e.TopK).Add(tid), end, lossThreads, order.Always)
		k.BarSync(ptx.Uint(0))
		k.For(tid, ptx.Uint(e.NumExperts), ptx.Uint(lossThreads), func(expert ptx.U32) {
			at := e.counts.Plus(expert.ShlI(2))
			ptx.StShared(at, ptx.LdShared[ptx.U32](at).F32())
		})
	}, func() {
		k.For(tid, ptx.Uint(e.NumExperts), ptx.Uint(lossThreads), func(expert ptx.U32) {
			at := offsets.Index(expert, 4)
			n := ptx.LdGlobal[ptx.U32](at.At(4)).Sub(ptx.LdGlobal[ptx.U32](at))
			ptx.StShared(e.counts.Plus(expert.ShlI(2)), n.F32())
		})
	})
	k.BarSync(ptx.Uint(0))
}

// token adds a token to the sums and writes its gradients. A lane has every 32nd expert.
func (e *losses) token(token ptx.U32) {
	switch e.Part {
	case SumTokens:
		v := ptx.LdGlobalVec[ptx.F32](e.values.Index(token, 8), 2)
		e.sum(v[0], v[1])
		return
	case EachToken:
		token = token.Sub(e.first)
	}
	var logits []ptx.F32
	largest := ptx.Float(math.Inf(-1))
	e.each(func(i int, expert ptx.U32, valid ptx.Pred) {
		l := ptx.NewVar(e.k, ptx.Float(math.Inf(-1)))
		e.k.If(valid, func() { l.Set(e.logit(token, expert)) })
		logits = append(logits, l.Get())
		largest = largest.Max(l.Get(), ".NaN")
	})
	largest = reduce(largest, lanes.Larger)
	sum, dot := ptx.Float(0), ptx.Float(0)
	e.each(func(i int, expert ptx.U32, valid ptx.Pred) {
		p := scores.Exp(logits[i].Sub(largest))
		count := ptx.NewVar(e.k, ptx.Float(0))
		e.k.If(valid, func() { count.Set(e.count(expert)) })
		sum, dot = sum.Add(p), p.Fma(count.Get(), dot)
		logits[i] = p
	})
	sum, dot = reduce(sum, lanes.Add), reduce(dot, lanes.Add)
	inverse := sum.RcpApprox(".ftz")
	s, lse := dot.Mul(inverse), sum.Lg2Approx(".ftz").Fma(ptx.Float(math.Ln2), largest)
	if e.Part == EachToken {
		e.k.If(e.lane.EqI(0), func() { ptx.StGlobal(e.values.Index(token, 8), s, lse) })
	} else {
		e.sum(s, lse)
	}
	e.k.If(e.write.Given(), func() { e.gradients(token, logits, inverse, s, lse) })
}

// sum adds s_t and lse_t² of a token to the sums.
func (e *losses) sum(s, lse ptx.F32) {
	e.balanceSum.Set(e.balanceSum.Get().Add(s))
	e.zSquare.Set(lse.Fma(lse, e.zSquare.Get()))
}

// gradients writes the token's row of gradients. p has the exponentials of the token's logits.
func (e *losses) gradients(token ptx.U32, p []ptx.F32, inverse, s, lse ptx.F32) {
	z := e.zLoss.Mul(lse)
	e.each(func(i int, expert ptx.U32, valid ptx.Pred) {
		e.k.If(valid, func() {
			d := ptx.NewVar(e.k, p[i].Mul(inverse).Mul(e.count(expert).Sub(s).Fma(e.balance, z)))
			e.k.If(e.add.Given(), func() {
				d.Set(d.Get().Add(ptx.LdGlobal[ptx.F32](e.at(e.add, token, expert, 4))))
			})
			ptx.StGlobal(e.at(e.write, token, expert, 4), d.Get())
		})
	})
}

// each runs body for the lane's experts. valid is false past the last expert.
func (e *losses) each(body func(i int, expert ptx.U32, valid ptx.Pred)) {
	for i := range (e.NumExperts + lanes.Count - 1) / lanes.Count {
		expert := e.lane.AddI(lanes.Count * i)
		body(i, expert, expert.LtI(e.NumExperts))
	}
}

// count returns the count of an expert.
func (e *losses) count(expert ptx.U32) ptx.F32 {
	return ptx.LdShared[ptx.F32](e.counts.Plus(expert.ShlI(2)))
}

// logit loads a logit as FP32.
func (e *losses) logit(token, expert ptx.U32) ptx.F32 {
	return scores.LoadLogit(e.Logits, e.logits.Index(token, int(e.Logits.Bytes())*e.NumExperts), expert)
}

// at returns the address of an element of a tensor [T, E].
func (e *losses) at(of ptx.Global, token, expert ptx.U32, bytes int) ptx.Global {
	return of.Index(token, bytes*e.NumExperts).Index(expert, bytes)
}

// reduce combines the values of all lanes. It first combines lanes that are 16 apart, then 8, 4, 2
// and 1 apart. This order determines the bits of the losses.
func reduce(x ptx.F32, with func(a, b ptx.F32) ptx.F32) ptx.F32 {
	return lanes.Combine(x, with, 16, 8, 4, 2, 1)
}

// LossSum computes the balance loss and the z-loss from the CTAs' partial sums.
type LossSum struct{}

// LossSumArgs are the arguments of [LossSum].
type LossSumArgs struct {
	// Partials [Ranges, 2] f32 comes from [Losses], one row per CTA.
	Partials driver.DevicePtr
	// Losses [2] f32 is the output: the balance loss and the z-loss.
	Losses driver.DevicePtr
	Ranges int
	// Balance is E/(K·S·T). ZLoss is 1/T.
	Balance, ZLoss float32
}

// Build emits the kernel.
func (LossSum) Build() (*jit.Kernel[LossSumArgs], error) {
	k := jit.NewBuilder[LossSumArgs]("moe_losssum", lanes.Count, 1)
	k.CTAs(func(*LossSumArgs) int { return 1 })
	partials, out := k.Ptr(&k.Args.Partials), k.Ptr(&k.Args.Losses)
	ranges := k.U32(&k.Args.Ranges)
	scale := [2]ptx.F32{k.F32(&k.Args.Balance), k.F32(&k.Args.ZLoss)}
	k.GridDepWait()
	k.GridDepLaunch()
	lane := k.TidX()
	k.If(lane.LtI(len(scale)), func() {
		sum := ptx.NewVar(k.Kernel, ptx.Float(0))
		k.For(ptx.Uint(0), ranges, ptx.Uint(1), func(i ptx.U32) {
			sum.Set(sum.Get().Add(ptx.LdGlobal[ptx.F32](partials.Index(i.ShlI(1).Add(lane), 4))))
		})
		ptx.StGlobal(out.Index(lane, 4), sum.Get().Mul(ptx.Select(lane.EqI(0), scale[0], scale[1])))
	})
	return k.Build()
}

// LossesKernel and LossSumKernel run when a call asks for losses.
var (
	LossesKernel = &registry.Kernel[LossesArgs]{KernelName: "losses", Backward: true, Emit: func(l registry.Layer) (*jit.Kernel[LossesArgs], error) {
		return Losses{NumExperts: l.NumExperts, TopK: l.TopK, Logits: l.Logits}.Build()
	}}
	LossSumKernel = &registry.Kernel[LossSumArgs]{KernelName: "loss-sum", Backward: true, Emit: func(registry.Layer) (*jit.Kernel[LossSumArgs], error) {
		return LossSum{}.Build()
	}}
)
