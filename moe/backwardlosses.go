package moe

import (
	"sonicmoe/driver"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/moe/internal/route/training"
)

// hasLosses reports whether the pass adds gradients of the balance loss or the z-loss.
func (b *BackwardArgs) hasLosses() bool { return b.Balance != 0 || b.ZLoss != 0 }

// losses computes the losses on the logits and their gradients, and adds the
// caller's gradients of the logits.
func (r *backwardRun) losses() {
	if r.list && r.Sequence == 0 {
		// The balance loss counts the choice before rounding, so this is a plan of the choice. It
		// must not change the list's pairs, because dLogits reads them later.
		choice := r.w.indices
		choice.pairs = choice.unordered
		r.count(r.tokens, r.ExpertIDs, r.Workspace.Ptr, choice)
		r.plan(order.PlanKernel, r.ranges(r.tokens), r.ExpertIDs, r.Workspace.Ptr, choice)
	}
	length, ids := r.tokens, driver.DevicePtr(0)
	if r.Sequence > 0 {
		length, ids = r.Sequence, r.ExpertIDs.Ptr
	}
	args := r.lossesArgs(length, r.tokens)
	args.Offsets, args.ExpertIDs = r.at(r.w.offsets), ids
	launch(r.queue, training.LossesKernel, args)
	r.sumLosses(args)
}

// lossesArgs returns the arguments of the losses' kernels, for sequences of a number of tokens.
func (r *backwardRun) lossesArgs(length, tokens int) training.LossesArgs {
	args := training.LossesArgs{Logits: r.Logits.Ptr, AddDLogits: r.DLogits.Ptr, Partials: r.at(r.w.lossPartials), Sequences: training.SequencesOf(length, tokens, r.layer.sms)}
	args.Balance, args.ZLoss = float32(float64(r.Balance)*r.balanceScale(length, tokens)), float32(float64(r.ZLoss)*2/float64(tokens))
	if r.hasLosses() {
		args.DLogits = r.at(r.w.denseDLogits)
	}
	return args
}

// balanceScale returns the factor E/(K·S·T) of the balance loss.
func (r *backwardRun) balanceScale(length, tokens int) float64 {
	of := r.layer.of
	return float64(of.NumExperts) / (float64(of.TopK) * float64(length) * float64(tokens))
}

// sumLosses adds up the losses, if they are wanted. args are the arguments of the kernel that has
// added the losses of the tokens of each range.
func (r *backwardRun) sumLosses(args training.LossesArgs) {
	if !r.RouterLosses.IsZero() {
		launch(r.queue, training.LossSumKernel, training.LossSumArgs{
			Partials: args.Partials, Losses: r.RouterLosses.Ptr, Ranges: args.CTAs(r.layer.sms),
			Balance: float32(r.balanceScale(args.Length, args.Tokens)), ZLoss: float32(1 / float64(args.Tokens)),
		})
	}
}
