// Package exchange has the kernels of a layer whose experts are spread over ranks. Rank r of W
// owns the experts from [First](E, W, r) to First(E, W, r+1) - 1. [Owners] finds the rank of
// each pair of token and slot. The plan of package order then orders the pairs by rank, and,
// with the repeated ranks of a token left out, the rows to send. [Entries] writes the list of
// tokens, experts and scores that a rank's experts get, and [Rows] packs rows to send. Rows
// that come back are summed by the layer's own Aggregate.
package exchange

import (
	"sonicmoe/driver"
	"sonicmoe/moe/internal/registry"
)

// First returns the first of E experts that rank r of W owns, or E if r is W.
func First(experts, ranks, r int) int { return r * experts / ranks }

// Kernels lists the kernels of a layer that spreads its experts over ranks, OfRank those of the
// layer of one rank's experts.
var (
	Kernels = registry.Registry{OwnersKernel, EntriesKernel, RowsKernel, ScoresKernel, ScoresGivenKernel}
	OfRank  = registry.Registry{RowsKernel, WordsKernel}
)

// Split has the tensors of a rank's pairs and rows, ordered by the rank that they go to.
type Split struct {
	// Tokens is T, Ranks is W, and Chunks is C: the experts of each rank are in C chunks, as
	// if there were C times as many ranks.
	Tokens, Ranks, Chunks int
	// ExpertIDs [T, K] i32 and Scores [T, K] f32 are the routing.
	ExpertIDs, Scores driver.DevicePtr
	// PairRanks [T, K] i32 is an output: chunk·W + rank of each pair's expert, or -1 if the
	// expert is outside [0, E). RowRanks [T, K] i32 is the rank, with -1 for repeated ranks of
	// a token too.
	PairRanks, RowRanks driver.DevicePtr
	// Pairs [P] u32 has the pairs, token·K + slot, by chunk, rank, token and slot. Places
	// [T, K] u32 is its inverse, with order.NoRow for pairs without a rank.
	Pairs, Places driver.DevicePtr
	// RowTokens [S] u32 has the tokens to send, by rank, then token. RowPlaces [T, K] u32 is
	// the place of a token's first pair of each rank, order.NoRow for the other pairs.
	RowTokens, RowPlaces driver.DevicePtr
	// PairOffsets [E+1] u32 has the first pair of each rank of each chunk, RowOffsets [E+1]
	// u32 the first row of each rank; then the number of pairs and of rows.
	PairOffsets, RowOffsets driver.DevicePtr
}

// Packed has the result of the products of a rank's experts: Y [L, d] in the order of the
// packed rows, and Inverse [L] u32, the packed row of each entry of the list.
type Packed struct{ Y, Inverse driver.DevicePtr }
