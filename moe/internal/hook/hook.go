// Package hook gives packages moe/tools and moe/parallel access to functions that package moe does
// not export.
package hook

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/exchange"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/route/training"
)

// Sources emits the kernels that moe.New compiles for a target. opts is a []moe.Option. Package moe
// sets Sources.
var Sources func(t driver.Target, c spec.Config, opts any) ([]jit.Source, error)

// Steps has the functions that queue the steps of a pass whose experts are spread over ranks. The type
// parameters stand for *moe.Call, moe.ForwardArgs, moe.BackwardArgs and moe.Gradient, which this
// package cannot import. A rank has two layers: one made with [OfRank] for its experts, and one made
// with [Home] for its tokens. Experts, GradientH, GradientScores, GradientRows, GradientWeights, ExpertSums
// and NoWeights take a call of the first layer. Check, CheckBackward and Rows take a call of either layer.
// All other functions take a call of the second layer. Package exchange explains the symbols in
// shapes.
type Steps[C, F, B, G any] struct {
	// Check checks the tensors of a forward pass. A home layer checks the tensors of the tokens. A
	// layer of experts checks the weights of its experts. routed reports whether the pass chooses
	// experts.
	Check func(c C, f *F, routed bool) error
	// Split queues the kernels that sort pairs by expert and rows by rank.
	Split func(c C, s driver.Stream, of exchange.Split, workspace driver.DevicePtr) error
	// Entries queues the kernel that writes the lists for all ranks.
	Entries func(c C, s driver.Stream, of exchange.EntriesArgs) error
	// Shift queues the kernel that changes the places of pairs.
	Shift func(c C, s driver.Stream, of exchange.ShiftArgs) error
	// Rows queues the kernel that packs rows.
	Rows func(c C, s driver.Stream, of exchange.RowsArgs) error
	// Arrange queues the kernel that finds the rows of received pairs. Experts queues the products
	// of some of these rows.
	Arrange func(c C, s driver.Stream, of exchange.ArrangeArgs) error
	Experts func(c C, s driver.Stream, f F, of exchange.Work) error
	// SumPlaces and Slots queue the kernels of this name, for ranks that send partial sums. Slots takes a
	// call of the experts' layer. SumRows queues the sums of rows of Y for some received tokens, and
	// SumGradientRows those of rows of dX. Both take a call of the experts' layer.
	SumPlaces                func(c C, s driver.Stream, of exchange.SumPlacesArgs) error
	Slots                    func(c C, s driver.Stream, of exchange.SlotsArgs) error
	SumRows, SumGradientRows func(c C, s driver.Stream, of kernel.AggregateArgs) error
	// Returned returns the address where the T·K rows from the experts' ranks arrive. Sum queues
	// the shared experts and the sum over each token's rows. places [T, K] u32 has the index of the
	// row of each pair.
	Returned func(c C, f F) driver.DevicePtr
	Sum      func(c C, s driver.Stream, f F, places driver.DevicePtr) error

	// CheckBackward checks the tensors of a backward pass.
	CheckBackward func(c C, b *B) error
	// GradientH queues dH of some rows of the rank's experts, or of all rows if Work has no table. The rows
	// are sorted by expert, then by entry of the list.
	GradientH func(c C, s driver.Stream, b B, of exchange.Work) error
	// GradientScores comes after GradientH of all rows, and queues the gradients of the scores. The result is
	// their address, [L] f32 in the order of the received list.
	GradientScores func(c C, s driver.Stream, b B) (scores driver.DevicePtr, err error)
	// GradientRows comes after GradientScores. It queues the gradients of an adapter's factors for W2, and
	// the rows of dX of the rank's experts, which go to the address dx. dlogits [L] f32, unless 0, has the
	// gradients of the chosen logits. router is the address of the router's weights for the rank's first
	// expert. The rows are sorted by expert, then by entry of the list. The result has the row of each
	// entry, [L] u32. GradientWeights comes after GradientRows, and queues the gradients of W2 and W1, or of
	// an adapter's factors for W1.
	GradientRows    func(c C, s driver.Stream, b B, dlogits, router, dx driver.DevicePtr) (inverse driver.DevicePtr, err error)
	GradientWeights func(c C, s driver.Stream, b B) error
	// ExpertSums comes after GradientRows, and queues sums for each expert. values [L] f32, unless 0, has
	// a value for each entry of the received list. of has the other fields.
	ExpertSums func(c C, s driver.Stream, b B, values driver.DevicePtr, of training.ExpertSumsArgs) error
	// NoWeights queues zeros as the gradients of the weights, for a rank that received no tokens.
	NoWeights func(c C, s driver.Stream, b B) error
	// GradientsReturned returns two addresses, where the results of other ranks arrive: the
	// gradients of scores [P] f32, and the rows of dX.
	GradientsReturned func(c C, b B) (scores, rows driver.DevicePtr)
	// GradientLogits queues the gradients of scores and logits, from the gradients of scores that
	// other ranks have sent back. byPlace [P] f32 has the gradients of logits to send to the
	// experts' ranks, or is 0 if these ranks need none. scales [P] f32 has the parts of the gradients of
	// the experts' scales in the same order, for a layer with such scales.
	GradientLogits func(c C, s driver.Stream, b B, places driver.DevicePtr) (byPlace, scales driver.DevicePtr, err error)
	// GradientTokens queues the sum of the rows of dX that have come home.
	GradientTokens func(c C, s driver.Stream, b B, places driver.DevicePtr) error
	// RouterInputs queues the kernels that complete the inputs of GradientRouter, and
	// returns these inputs.
	RouterInputs func(c C, s driver.Stream, b B) (exchange.RouterInputs, error)
	// BiasInputs does the same for the gradient of b2.
	BiasInputs func(c C, s driver.Stream, b B) (exchange.RouterInputs, error)
	// GradientRouter queues partial sums of the router's gradient, or of the gradient of b2, over
	// ranges of tokens.
	GradientRouter func(c C, s driver.Stream, of exchange.RouterInputs, tokens, perRange int, partials driver.DevicePtr) error
	// SumRouter queues the sum of the partial sums of all ranges, which goes to the gradient `to`. gate
	// reports whether it is the gradient of the shared experts' gate.
	SumRouter func(c C, s driver.Stream, to G, gate bool, partials driver.DevicePtr, ranges int) error

	// SharedRows queues dX of the shared experts, and returns the tensors from which their other
	// gradients are made. Steps from GradientScores on overwrite these tensors.
	SharedRows func(c C, s driver.Stream, b B) (exchange.SharedRows, error)
	// SharedPart queues FP32 sums of the gradients of W1, W3 and W2 of the shared experts over some
	// tokens. The sums go to the addresses in to, unless these are 0.
	SharedPart func(c C, s driver.Stream, b B, of exchange.SharedRows, tokens int, to [3]driver.DevicePtr) error
	// AddParts queues the sum of such sums.
	AddParts func(c C, s driver.Stream, mode gradient.Mode, of exchange.PartsArgs) error
	// TokenLosses queues the losses on the logits of the rank's tokens and their gradients. SumLosses
	// queues the sum over the tokens of all ranks, which goes to b.RouterLosses.
	TokenLosses func(c C, s driver.Stream, b B, of exchange.LossTokens) error
	SumLosses   func(c C, s driver.Stream, b B, of exchange.LossTokens) error
}

// Ranks is the Steps of package moe, which sets it.
var Ranks any

// Home and OfRank are of type moe.Option. A layer with Home has the kernels for a rank's tokens:
// all but the experts' products. A layer with OfRank has the kernels for a rank's experts: the plan
// and the products of a list.
var Home, OfRank any
