package parallel

import (
	"context"
	"fmt"
	"math"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/exchange"
	"sonicmoe/moe/internal/kernel/drouter"
	"sonicmoe/moe/internal/route/training"
)

// BackwardArgs are the buffers of a backward pass over this rank's tokens. A field has the same
// meaning as in [moe.BackwardArgs]. X and the weights are the same as in the forward pass.
type BackwardArgs struct {
	X moe.Tensor
	moe.Weights
	// Scores and ExpertIDs come from the forward pass, and Logits if Config.SavesLogits reports
	// true.
	Scores, ExpertIDs, Logits moe.Tensor
	// Losses has losses over the tokens of all ranks. All ranks have the same coefficients and the same
	// Sequence, a divisor of the number of all tokens. Either all ranks give DLogits or none does. The
	// same is true of RouterLosses, which is the same on all ranks.
	moe.Losses
	// Saved is what the forward pass saved.
	Saved *Saved
	// DO [T, d] is the gradient of O.
	DO moe.Tensor
	// DX [T, d] and DScores [T, K] f32 are written unless zero. Either all ranks want DX or none
	// does.
	DX, DScores moe.Tensor
	// WeightGradients have the shapes of the rank's weights. A rank gets the whole gradients of its
	// experts. DRouter is the same on all ranks, and either all want it or none does. The same is
	// true of the gradients of shared experts, of DRouterBias, of DExpertScale, and of DB2, the gradient of
	// the experts' second biases.
	moe.WeightGradients
	// Workspace has Sizes.BackwardWorkspace bytes.
	Workspace moe.Buffer
}

// Backward runs the backward pass of a Forward with Args.Saved. All gradients have the same bits as
// on one device that has the tokens of all ranks in order, except DX with Options.PartialSums. Backward returns when everything is
// queued on s, see [Rank.Wait]. If it fails on one rank, it fails on all, and the group is broken.
func (r *Rank) Backward(ctx context.Context, s driver.Stream, a BackwardArgs) error {
	ctx, cancel := context.WithTimeout(ctx, r.Deadline)
	defer cancel()
	p := &backward{pass: pass{Rank: r, ctx: ctx, s: s}, of: a}
	r.trace.spans = r.trace.spans[:0]
	step := Step{Phase: "wanted"}
	err := p.check()
	for _, next := range []struct {
		phase string
		run   func(at Step) error
	}{
		{"wanted", p.wanted}, {"shared experts", p.shared}, {"losses", p.losses}, {"dispatch", p.dispatch}, {"scores", p.scores}, {"logits", p.logits}, {"return", p.giveBack}, {"router", p.sumRouter}, {"partials", p.partials}, {"biases", p.biases}, {"router bias", p.routerBias}, {"expert scales", p.expertScales},
	} {
		if err != nil {
			break
		}
		step.Phase = next.phase
		err = next.run(step)
	}
	if err != nil {
		return r.fail(step, err)
	}
	return nil
}

// backward is the state of a backward pass while it is queued.
type backward struct {
	pass
	of BackwardArgs
	b  backwardLayout
	// atHome has the arguments for the layer of this rank's tokens, and experts has the arguments
	// for the layer of its experts.
	atHome, experts moe.BackwardArgs
	// byPlace has the gradients of the chosen logits in the order of the sent pairs, or is 0 if the
	// experts do not need them. scales has the parts of the gradients of the experts' scales in this order.
	byPlace, scales driver.DevicePtr
	inputs          exchange.RouterInputs
	ranges          ranges
	summed          drouter.DRouter // the gradient that inputs are for
	back            []Exchange      // the exchanges of the rows of dX, one for each chunk
}

// backwardLayout has the offsets in bytes of the parts of the workspace.
type backwardLayout struct {
	home, owner int64
	splitLayout
	uploads int64 // the plan of the pass
	// send has the rows of dO to send, and later the rows of dX of the rank's experts. back has such
	// rows if they are packed, or has partial sums. window receives rows of dO, and dlogits receives gradients of logits.
	send, back, window, dlogits int64
	// tail has the tokens of this rank's last range, if other ranks have some of them. partials has
	// the partial sums of the router's gradient of all ranks.
	tail     tail
	partials int64
	own      int64 // the partial sums of this rank
	biases   int64 // the gradient of b2 of all experts
	sums     int64 // gradients of the router's biases, or of the scales, of this rank's experts
	dense    int64 // gradients of the logits of all ranks' tokens, for the router's biases
	shared   sharedLayout
	losses   lossesLayout
	bytes    int64
}

// tail has the offsets of the inputs of the router's gradient, for a range whose tokens are on
// several ranks.
type tail struct{ x, dlogits, ids, dense int64 }

func (r *Rank) backwardLayout() (w backwardLayout, err error) {
	c, ranks := r.Config, r.transport.Ranks()
	home, owner, err := r.partSizes()
	if err != nil {
		return w, err
	}
	var s space
	w.home, w.owner = s.take(home.BackwardWorkspace), s.take(owner.BackwardWorkspace)
	w.splitLayout = r.splitLayout(&s)
	w.uploads = s.take(r.planBytes())
	w.send = s.take(max(r.rowBytes(r.MaxTokens*min(c.TopK, ranks)), r.alignedBytes(r.windowPairs())))
	w.back = s.take(r.rowBytes(r.backRows()))
	w.window = s.take(r.rowBytes(r.windowRows()))
	w.dlogits = s.take(4 * int64(r.windowPairs()))
	most, each := r.routerGradient().MostRanges(r.windowRows()), 4*int64(c.NumExperts)*int64(c.Hidden)
	tokens := min(r.windowRows(), drouter.MostTokens)
	w.tail = tail{s.take(r.rowBytes(tokens)), s.take(4 * int64(tokens*c.TopK)), s.take(4 * int64(tokens*c.TopK)), s.take(4 * int64(tokens*c.NumExperts))}
	w.partials, w.own = s.take(int64(most)*each), s.take(int64(most)*each)
	if c.Bias {
		w.biases = s.take(each)
	}
	w.sums = s.take(4 * int64(r.count))
	if c.RouterBias {
		w.dense = s.take(4 * int64(r.windowRows()) * int64(c.NumExperts))
	}
	w.shared, w.losses = r.sharedLayout(&s), r.lossesLayout(&s)
	w.bytes = s.bytes
	return w, nil
}

// check checks the arguments and lays out the workspace.
func (p *backward) check() (err error) {
	if p.b, err = p.backwardLayout(); err != nil {
		return err
	}
	a := &p.of
	if a.Saved == nil || a.Saved.rows == nil {
		return &moe.ArgError{Field: "Saved", Got: "not written", Want: "what a Forward of this group has saved"}
	}
	p.counts = a.Saved.counts
	p.divide()
	if !p.inPortions() {
		p.groups = 1
	}
	if p.sums() || p.packs {
		p.chunks, p.parts = p.groups, 1 // the rows of dX of all experts are made at once
	}
	p.w.uploads = p.b.uploads
	if err := checkBuffer("Workspace", a.Workspace, p.b.bytes); err != nil {
		return err
	}
	if got, want := a.X.Shape.Dims[0], p.tokens[p.transport.Rank()]; got != want {
		return &moe.ArgError{Field: "X", Got: a.X.Shape.String(), Want: fmt.Sprintf("the %d tokens of the forward pass", want)}
	}
	p.mine = int(a.X.Shape.Dims[0])
	if p.received, err = p.place(a.Saved, moe.Buffer{}); err != nil {
		return err
	}
	if err := p.checkSequence(); err != nil {
		return err
	}
	p.args = Args{Weights: a.Weights, Workspace: a.Workspace}
	routing := moe.Routing{Scores: a.Scores, ExpertIDs: a.ExpertIDs}
	p.split = p.b.split(a.Workspace.Ptr, p.Rank, p.mine, routing)
	p.found, p.weights, p.slots = p.at(p.b.found), p.at(p.b.weights), p.at(p.b.slots)
	p.atHome = moe.BackwardArgs{
		X: a.X, Weights: a.Weights, Saved: moe.Saved{Routing: routing, Logits: a.Logits}, Losses: a.Losses,
		DO: a.DO, DX: a.DX, DScores: a.DScores, Workspace: part(a.Workspace, p.b.home),
	}
	p.atHome.Sequence = 0 // it need not divide the number of this rank's tokens
	if p.received.sharedH != 0 {
		p.atHome.SharedH = p.savedSharedH()
	}
	p.experts.Weights = p.expertWeights()
	for _, id := range moe.WeightIDs() {
		if d := p.atHome.Gradient(id); d != nil && isHome(id) {
			*d = *a.Gradient(id)
		} else if d := p.experts.Gradient(id); d != nil {
			*d = *a.Gradient(id)
		}
	}
	if err := steps.CheckBackward(p.pass.experts, &p.experts); err != nil {
		return err
	}
	return steps.CheckBackward(p.call, &p.atHome)
}

func (p *backward) wantsDX() bool         { return !p.of.DX.IsZero() }
func (p *backward) wantsRouter() bool     { return !p.of.DRouter.IsZero() }
func (p *backward) wantsRouterBias() bool { return !p.of.DRouterBias.IsZero() }
func (p *backward) wantsB2() bool         { return !p.of.DB2.IsZero() }

// choice is an argument of a backward pass that must be the same on all ranks.
type choice struct {
	field string
	word  int64
	// isOutput reports whether word only tells if the field is given.
	isOutput bool
}

// choices lists the arguments that must be the same on all ranks.
func (p *backward) choices() (list []choice) {
	for _, o := range []struct {
		field string
		given bool
	}{
		{"DX", p.wantsDX()}, {"DRouter", p.wantsRouter()}, {"DLogits", !p.of.DLogits.IsZero()}, {"DB2", p.wantsB2()}, {"DRouterBias", p.wantsRouterBias()},
		{"DExpertScale", !p.of.DExpertScale.IsZero()}, {"DSharedGate", !p.of.DSharedGate.IsZero()}, {"RouterLosses", !p.of.RouterLosses.IsZero()},
	} {
		word := int64(0)
		if o.given {
			word = 1
		}
		list = append(list, choice{o.field, word, true})
	}
	l := &p.of.Losses
	list = append(list, choice{"Balance", int64(math.Float32bits(l.Balance)), false}, choice{"ZLoss", int64(math.Float32bits(l.ZLoss)), false}, choice{"Sequence", int64(l.Sequence), false})
	for _, id := range sharedExperts {
		list = append(list, choice{"the type or mode of " + spec.Row(id).GradientID.String(), modeWord(*p.of.Gradient(id)), false})
	}
	return list
}

// wanted compares the choice of outputs and losses of all ranks, and sorts pairs and rows again.
func (p *backward) wanted(at Step) error {
	list := p.choices()
	words := make([]int64, len(list))
	for i, c := range list {
		words[i] = c.word
	}
	all, err := p.transport.Share(p.ctx, at, words)
	if err != nil {
		return err
	}
	for i, other := range all {
		for j, c := range list {
			if other[j] != c.word && c.isOutput {
				return fmt.Errorf("%s is given on rank %d or on this one, and not on both", c.field, i)
			} else if other[j] != c.word {
				return fmt.Errorf("%s of rank %d differs from this rank's, must be the same", c.field, i)
			}
		}
	}
	return p.span(Span{Name: "route"}, p.s, func() error {
		p.plan = p.backwardPlan()
		if err := p.s.CopyToDevice(p.at(p.b.uploads), p.plan.bytes); err != nil || p.mine == 0 {
			return err
		}
		if err := steps.Split(p.call, p.s, p.split, p.atHome.Workspace.Ptr); err != nil {
			return err
		}
		return p.findRows(p.uploaded(p.plan.shifts))
	})
}

// scores sends the gradients of the scores home, which the owners have computed with dH.
func (p *backward) scores(at Step) (err error) {
	var made driver.DevicePtr
	if p.receives(&p.counts, p.transport.Rank()) > 0 {
		if made, err = steps.GradientScores(p.pass.experts, p.s, p.experts); err != nil {
			return err
		}
	}
	to, _ := steps.GradientsReturned(p.call, p.atHome)
	if err := p.move(at, p.s, p.pairsBack(4, made, to)); err != nil || p.mine == 0 {
		return err
	}
	p.byPlace, p.scales, err = steps.GradientLogits(p.call, p.s, p.atHome, p.split.Places)
	return err
}

// sparse reports whether the owners need the gradients of the chosen logits: for the router's part
// of the rows of dX, or for the gradient of the router's bias.
func (p *backward) sparse() bool {
	return (p.wantsDX() || p.wantsRouterBias()) && training.Sparse(p.Config)
}

// logits sends the gradients of the chosen logits to the owners. The owners compute the rows of dX.
func (p *backward) logits(at Step) error {
	to := driver.DevicePtr(0)
	if p.sparse() {
		to = p.at(p.b.dlogits)
		if err := p.move(at, p.s, p.pairsOut(4, p.byPlace, to)); err != nil {
			return err
		}
	}
	arrive, rows := p.dxRows()
	p.back = nil
	for c := range p.chunks {
		switch {
		case p.sums():
			p.back = append(p.back, p.sumsBack(c, p.at(p.b.back), arrive))
		case p.packs:
			p.back = append(p.back, p.packedBack(c, p.at(p.b.back), arrive))
		default:
			p.back = append(p.back, p.rowsBack(c, rows, arrive)...)
		}
	}
	if p.receives(&p.counts, p.transport.Rank()) == 0 {
		return steps.NoWeights(p.pass.experts, p.s, p.experts)
	}
	first, _ := p.Experts()
	router := p.of.Router.Ptr + driver.DevicePtr(p.of.Router.Shape.Bytes()/int64(p.Config.NumExperts)*int64(first))
	return p.span(Span{Name: "dX"}, p.s, func() error {
		inverse, err := steps.GradientRows(p.pass.experts, p.s, p.experts, to, router, rows)
		for c := range p.chunks {
			switch {
			case err != nil || !p.wantsDX():
			case p.sums():
				err = p.sumOthers(c, steps.SumGradientRows, rows, p.at(p.b.back))
			case p.packs:
				err = p.packChunk(c, p.pass.experts, rows, inverse, &p.back[c])
			}
		}
		return err
	})
}

// dxRows returns two addresses of rows of dX: where the rows of other ranks arrive, and where this
// rank's experts write their rows.
func (p *backward) dxRows() (arrive, made driver.DevicePtr) {
	_, arrive = steps.GradientsReturned(p.call, p.atHome)
	return arrive, p.aligned(p.at(p.b.send), arrive)
}

// giveBack sends the rows of dX home on the side stream, while dW2 and dW1 are computed. Then it queues the
// sum of each token's rows.
func (p *backward) giveBack(at Step) error {
	if p.wantsDX() {
		if err := p.order(p.made, p.s, p.side); err != nil {
			return err
		}
	}
	// The host queues dW2 and dW1 before the exchange, because it may wait for other ranks in Move.
	if p.receives(&p.counts, p.transport.Rank()) > 0 {
		if err := p.span(Span{Name: "dW2, dW1"}, p.s, func() error { return steps.GradientWeights(p.pass.experts, p.s, p.experts) }); err != nil {
			return err
		}
	}
	if !p.wantsDX() {
		return nil
	}
	if err := p.move(at, p.side, p.back...); err != nil {
		return err
	}
	if err := p.order(p.moved, p.side, p.s); err != nil || p.mine == 0 {
		return err
	}
	return p.span(Span{Name: "sum"}, p.s, func() error { return steps.GradientTokens(p.call, p.s, p.atHome, p.found) })
}
