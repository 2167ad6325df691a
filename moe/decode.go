package moe

import (
	"math"

	"sonicmoe/driver"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/kernel/decode"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/choose"
)

// leastFew tokens, one block of them, are always few.
const leastFew = 64

// decodeUpTo is the number of tokens that a layer with these options decodes.
// Measured on an H200, the kernels of package decode lead by 5 to 15 % at 32 rows an
// expert, by 4 to 19 at 64, and then by less, until products take longer than reading
// the weights or an expert has more rows than their widest product's 128. The more
// experts there are, the further the largest of them is from the mean: both kinds were
// level at 121 or 122 rows an expert with 8 experts, at 99 to 102 with 32, at 86 with 128 and at
// 50 to 64 with 256; with 512 those for few led by half a percent still at 39.
func (o options) decodeUpTo(c Config) int {
	if o.decode != nil {
		return *o.decode
	}
	experts := float64(max(1, c.NumExperts))
	doublings := math.Log2(max(8, experts)) - 5 // of 32 experts
	fewer := 7.5                                // rows each
	if doublings < 0 {
		fewer = 10.25
	}
	rows := min(100.5-fewer*doublings, max(64, 16384/experts))
	return min(max(leastFew, int(rows*experts/float64(c.TopK))), decode.MostTokens)
}

// few says which kernels the passes of a layer over few tokens take. It is worked out
// once, by New.
type few struct {
	// upTo tokens are few, from wideFrom on, unless 0, with wide CTAs.
	upTo, wideFrom int
	// byWarps is up to how many of them a warp chooses a token's experts, from the
	// router's sums.
	byWarps int
	// inRouter: the router chooses where these don't. lone and small: products choose
	// the experts themselves, of one token, of a few.
	inRouter, lone, small bool
}

func (o options) few(c Config) few {
	f := few{upTo: o.decodeUpTo(c), wideFrom: decode.WideFrom(c), inRouter: choose.InRouter(c)}
	// Sums of the router lie where a token's rows of Y are to come.
	room := 2 * c.TopK * c.Hidden
	if f.inRouter && 4*c.NumExperts <= room {
		f.byWarps = min(f.upTo, choose.MostByWarps)
	}
	f.lone = f.byWarps > 0 && choose.HasLone(c)
	f.small = f.byWarps > 0 && choose.ChoosesInProducts(c) && choose.ChainBytes(c) <= room
	return f
}

// launches reports whether some pass launches a kernel, one that suits the layer.
func (f *few) launches(k registry.Any) bool {
	switch k {
	case decode.UpKernel, decode.DownKernel, kernel.EarlyAggregateKernel:
		return f.decodes(1)
	case decode.WideUpKernel, decode.WideDownKernel:
		return f.isWide(f.upTo)
	case choose.FewLogitsKernel:
		return f.choosesByWarps(1) || f.decodes(1) && !f.inRouter
	case choose.ChooseKernel: // of one token by Call.Route
		return f.choosesAtOnce(1)
	case choose.ChooseRangesKernel:
		return f.choosesByWarps(choose.MostAtOnce + 1)
	case choose.ChainLogitsKernel:
		return f.isLone(1) || f.isSmall(1) || f.isSmall(2)
	case decode.LoneUpKernel, decode.LoneDownKernel:
		return f.isLone(1)
	case decode.SmallUpKernel, decode.SmallDownKernel:
		return f.isSmall(1) || f.isSmall(2)
	}
	return true
}

// decodes reports whether a pass takes the kernels for few tokens.
func (f *few) decodes(tokens int) bool { return 0 < tokens && tokens <= f.upTo }

// isWide reports whether it has so many of them that CTAs are wide.
func (f *few) isWide(tokens int) bool {
	return f.wideFrom > 0 && f.wideFrom <= tokens && f.decodes(tokens)
}

// choosesByWarps reports whether a pass that routes has a warp choose a token's experts.
func (f *few) choosesByWarps(tokens int) bool { return 0 < tokens && tokens <= f.byWarps }

// choosesAtOnce reports whether it has one kernel for that and the plan.
func (f *few) choosesAtOnce(tokens int) bool {
	return f.choosesByWarps(tokens) && tokens <= choose.MostAtOnce
}

// isLone reports whether a pass has one token only, whose products choose its
// experts themselves.
func (f *few) isLone(tokens int) bool { return tokens == 1 && f.lone }

// isSmall reports whether a pass has so few tokens that its up-projection chooses their
// experts itself, from the sums of the router's chains.
func (f *few) isSmall(tokens int) bool {
	return f.small && !f.isLone(tokens) && tokens <= decode.MostSmall && f.choosesAtOnce(tokens)
}

// choose queues the routing of few tokens, and the plan.
func (q *queue) choose(t int, f *Forward, w workspace) {
	p := f.Workspace.Ptr
	logits := at(p, w.y)
	q.fewLogits(t, f, w.indices, logits)
	launch(q, choose.ChooseKernel, choose.ChooseArgs{
		FewLogits: logits, Scores: f.Scores.Ptr, Logits: f.Logits.Ptr, PlanTensors: w.plan(p, f.ExpertIDs), Tokens: t,
	})
}

// chooseRanges queues the routing of few tokens that have a plan of several CTAs.
func (q *queue) chooseRanges(t int, f *Forward, w workspace) {
	p := f.Workspace.Ptr
	logits := at(p, w.y)
	q.fewLogits(t, f, w.indices, logits)
	launch(q, choose.ChooseRangesKernel, choose.ChooseRangesArgs{
		FewLogits: logits, Scores: f.Scores.Ptr, ExpertIDs: f.ExpertIDs.Ptr, Logits: f.Logits.Ptr, Counts: at(p, w.counts), TokenRanges: q.routed(t),
	})
}

// fewLogits queues the router product of few tokens.
func (q *queue) fewLogits(t int, f *Forward, w indices, logits driver.DevicePtr) {
	launch(q, choose.FewLogitsKernel, choose.FewLogitsArgs{
		X: f.X.Ptr, Weights: q.layer.routerTerms(f.Router, f.Workspace.Ptr, w), Bias: f.RouterBias.Ptr, Logits: logits, Tokens: t,
	})
}

// smallPass queues a whole pass of so few tokens.
func (q *queue) smallPass(n work, f *Forward) {
	w, p := q.laid(n).workspace, f.Workspace.Ptr
	// The sums of the router's chains lie where Y is to come. The table's length takes the
	// place of the offsets, words of which become 0 with the sums.
	sums, length := at(p, w.y), at(p, w.offsets)
	tiles := func(which int64) gemm.TileArgs {
		t := w.tiles(p, which)
		t.RowPairs = length
		return t
	}
	launch(q, choose.ChainLogitsKernel, choose.FewLogitsArgs{X: f.X.Ptr, Weights: f.Router.Ptr, Logits: sums, Chosen: length, Tickets: at(p, w.tickets), Tokens: n.tokens})
	q.sharedProducts(n.tokens, f, w.shared)
	launch(q, decode.SmallUpKernel, decode.UpArgs{
		X: f.X.Ptr, W1: f.W1.Ptr, W3: f.W3.Ptr, B1: f.B1.Ptr, B3: f.B3.Ptr, A: at(p, w.a), H: f.H.Ptr, Rows: n.rows, TileArgs: tiles(0),
		ChoiceArgs: decode.ChoiceArgs{Sums: sums, RouterBias: f.RouterBias.Ptr, ChosenScores: f.Scores.Ptr, ExpertIDs: f.ExpertIDs.Ptr, Logits: f.Logits.Ptr, Inverse: at(p, w.inverse), Tokens: n.tokens},
	})
	launch(q, decode.SmallDownKernel, decode.DownArgs{A: at(p, w.a), W2: f.W2.Ptr, B2: f.B2.Ptr, Y: at(p, w.y), Rows: n.rows, TileArgs: tiles(1)})
	q.aggregate(n, f, w)
}

// loneToken queues a whole pass of one token.
func (q *queue) loneToken(n work, f *Forward) {
	w, p := q.laid(n).workspace, f.Workspace.Ptr
	// There is no plan: the sums of the router's chains take the place of the table,
	// which is 16 bytes an expert, the choice that of the offsets.
	sums, chosen := at(p, w.table), at(p, w.offsets)
	launch(q, choose.ChainLogitsKernel, choose.FewLogitsArgs{X: f.X.Ptr, Weights: f.Router.Ptr, Logits: sums, Chosen: chosen, Tickets: at(p, w.tickets), Tokens: 1})
	q.sharedProducts(1, f, w.shared)
	launch(q, decode.LoneUpKernel, decode.LoneUpArgs{
		Sums: sums, RouterBias: f.RouterBias.Ptr, Chosen: chosen, Scores: f.Scores.Ptr, ExpertIDs: f.ExpertIDs.Ptr, Logits: f.Logits.Ptr,
		X: f.X.Ptr, W1: f.W1.Ptr, W3: f.W3.Ptr, B1: f.B1.Ptr, B3: f.B3.Ptr, A: at(p, w.a), H: f.H.Ptr,
	})
	launch(q, decode.LoneDownKernel, decode.LoneDownArgs{
		Chosen: chosen, Scores: f.Scores.Ptr, A: at(p, w.a), W2: f.W2.Ptr, B2: f.B2.Ptr, SharedRow: at(p, w.shared.y), SharedScore: at(p, w.shared.weights), O: f.O.Ptr,
	})
}

// products queues up- and down-projection.
func (q *queue) products(n work, f *Forward, w pieces) {
	p := f.Workspace.Ptr
	rows := n.rows
	// A list may give an expert more rows than there are tokens.
	if !n.list && q.layer.few.decodes(n.tokens) {
		up, down := decode.UpKernel, decode.DownKernel
		if q.layer.few.isWide(n.tokens) {
			up, down = decode.WideUpKernel, decode.WideDownKernel
		}
		launch(q, up, decode.UpArgs{
			X: f.X.Ptr, Gather: at(p, w.gather), W1: f.W1.Ptr, W3: f.W3.Ptr, B1: f.B1.Ptr, B3: f.B3.Ptr, Scores: f.Scores.Ptr, Pairs: at(p, w.pairs), A: at(p, w.a), H: f.H.Ptr, Rows: rows, TileArgs: w.tiles(p, 0),
		})
		launch(q, down, decode.DownArgs{A: at(p, w.a), W2: f.W2.Ptr, B2: f.B2.Ptr, Y: at(p, w.y), Rows: rows, TileArgs: w.tiles(p, 1)})
		return
	}
	up, scores := kernel.UpInferenceKernel, f.Scores.Ptr
	if !f.H.IsZero() {
		up = kernel.UpKernel
	}
	if n.list {
		scores = f.List.Scores.Ptr
	}
	launch(q, up, kernel.UpArgs{
		X: f.X.Ptr, Gather: at(p, w.gather), W1: f.W1.Ptr, W3: f.W3.Ptr, B1: f.B1.Ptr, B3: f.B3.Ptr, Scores: scores, Pairs: at(p, w.pairs),
		A: at(p, w.a), H: f.H.Ptr, Rows: rows, TileArgs: w.tiles(p, 0),
	})
	launch(q, kernel.DownKernel, kernel.DownArgs{
		A: at(p, w.a), W2: f.W2.Ptr, B2: f.B2.Ptr, Y: at(p, w.y), Rows: rows, TileArgs: w.tiles(p, 1),
	})
}
