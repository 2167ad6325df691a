// Package hook gives packages moe/tools and moe/parallel what package moe does not export.
package hook

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/exchange"
)

// Sources emits the kernels that moe.New compiles for a target. Package moe sets
// it; opts is a []moe.Option.
var Sources func(t driver.Target, c spec.Config, opts any) ([]jit.Source, error)

// Steps are the steps of a pass whose experts are spread over ranks. C, F and B are *moe.Call,
// moe.ForwardArgs and moe.BackwardArgs, which this package cannot name. The call is of a layer
// made with [OfRank] in Experts, GradientScores, GradientWeights and NoWeights, of any of both
// in Check, CheckBackward and Rows, and of a layer made with [Home] in the other steps.
type Steps[C, F, B any] struct {
	// Check checks the tensors of a pass: at home those of the tokens, else the weights of
	// the rank's experts. routed reports whether the pass chooses experts.
	Check func(c C, f *F, routed bool) error
	// Split queues the kernels that order pairs and rows by rank.
	Split func(c C, s driver.Stream, of exchange.Split, workspace driver.DevicePtr) error
	// Entries queues the writing of the lists for all ranks.
	Entries func(c C, s driver.Stream, of exchange.EntriesArgs) error
	// Rows queues the packing of rows.
	Rows func(c C, s driver.Stream, of exchange.RowsArgs) error
	// Experts queues plan and products of ForwardExperts with a list.
	Experts func(c C, s driver.Stream, f F) (exchange.Packed, error)
	// Returned is the place for the rows that come back, of T·K rows. Sum queues the shared
	// experts, and the sum over each token's rows.
	Returned func(c C, f F) driver.DevicePtr
	Sum      func(c C, s driver.Stream, f F, places driver.DevicePtr) error

	// CheckBackward checks the tensors of a backward pass.
	CheckBackward func(c C, b *B) error
	// GradientScores queues dH of the rank's experts, and the gradients of the scores [L] f32
	// in the order of the list, which are the result.
	GradientScores func(c C, s driver.Stream, b B) (scores driver.DevicePtr, err error)
	// GradientWeights queues, after GradientScores, the gradients of the rank's weights and of
	// each row's input. dlogits [L] f32 are the gradients of the chosen logits, or 0. router
	// is the address of the router's weights of the rank's experts.
	GradientWeights func(c C, s driver.Stream, b B, dlogits, router driver.DevicePtr) (exchange.Packed, error)
	// NoWeights queues zeros as the gradients of the weights of a rank that got no tokens.
	NoWeights func(c C, s driver.Stream, b B) error
	// GradientsReturned returns the places for what comes home: gradients of scores [P] f32,
	// and rows of dX.
	GradientsReturned func(c C, b B) (scores, rows driver.DevicePtr)
	// GradientLogits queues the gradients of scores and logits from those that have come home.
	// byPlace [P] f32 is what goes to the experts, or 0 if nothing does.
	GradientLogits func(c C, s driver.Stream, b B, places driver.DevicePtr) (byPlace driver.DevicePtr, err error)
	// GradientTokens queues the sum of the rows of dX that have come home.
	GradientTokens func(c C, s driver.Stream, b B, places driver.DevicePtr) error
	// RouterInputs queues the kernels that complete the inputs of GradientRouter, and
	// returns these inputs.
	RouterInputs func(c C, s driver.Stream, b B) (exchange.RouterInputs, error)
	// GradientRouter queues partial sums of the router's gradient over ranges of tokens.
	GradientRouter func(c C, s driver.Stream, of exchange.RouterInputs, tokens, perRange int, partials driver.DevicePtr) error
	// SumRouter queues the sum of the partial sums of all ranges.
	SumRouter func(c C, s driver.Stream, b B, partials driver.DevicePtr, ranges int) error
}

// Ranks is a Steps of package moe, which sets it.
var Ranks any

// Home and OfRank are of type moe.Option. A layer with Home has the kernels of the tokens'
// rank: all but the experts' products. A layer with OfRank has the kernels of the experts of
// one rank: plan and products of lists.
var Home, OfRank any
