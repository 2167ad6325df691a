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

// Steps are the steps of a pass whose experts are spread over ranks. C is *moe.Call and F is
// moe.ForwardArgs, which this package cannot name. A call of a layer made with [Home] has
// every step but Experts, a call of a layer made with [OfRank] has Experts and Rows.
type Steps[C, F any] struct {
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
}

// Ranks is a Steps of package moe, which sets it.
var Ranks any

// Home and OfRank are of type moe.Option. A layer with Home has the kernels of the tokens'
// rank: all but the experts' products. A layer with OfRank has the kernels of the experts of
// one rank: plan and products of lists.
var Home, OfRank any
