// Package exchange has the kernels of a layer whose experts are spread over ranks.
//
// Symbols: a layer has T tokens, d elements a token, E experts and K chosen experts a token. A pair
// is a token with one of its K slots. There are W ranks, and rank r owns the experts from
// [First](E, W, r) to First(E, W, r+1) - 1. P is the number of pairs that a rank sends, to all
// ranks and to itself. S is the number of token rows that the rank sends: a token goes once to each
// rank that owns one of its experts. L is the number of pairs that a rank receives.
//
// The plan kernel of package order sorts the pairs by expert, and so by rank. A second plan sorts
// the rows to send, after [Owners] has found the first pair of each token for each rank. [Entries]
// writes the list that goes to each rank: for each pair a token row, an expert and a score. [Rows]
// packs rows to send. [Arrange] finds the rows of the entries that a rank receives. The layer's own
// Aggregate kernel sums the rows of Y that come back. It reads the rows of the rank's own experts where
// these experts wrote them: [Shift] changes the places of their pairs.
//
// If ranks send partial sums home, [SumPlaces] finds the rows and weights to add for each token, and
// the slot of each pair among the token's pairs of a rank. The rank that has the experts sorts its rows by
// token and slot with [Slots], and adds up the rows of each token of other ranks with Aggregate.
package exchange

import (
	"sonicmoe/driver"
	"sonicmoe/moe/internal/registry"
)

// First returns the first of E experts that rank r of W owns, or E if r is W.
func First(experts, ranks, r int) int { return r * experts / ranks }

// Kernels lists the kernels of the layer that holds a rank's tokens. OfRank lists the kernels of
// the layer that holds a rank's experts.
var (
	Kernels = append(registry.Registry{OwnersKernel, EntriesKernel, ShiftKernel, SumPlacesKernel, RowsKernel, ScoresKernel, ScoresGivenKernel, TokenLossesKernel, SumLossesKernel}, PartsKernels.Kernels()...)
	OfRank  = registry.Registry{ArrangeKernel, SlotsKernel, RowsKernel, WordsKernel, SumsKernel}
)

// Split has the inputs and outputs of the kernels that sort a rank's pairs by expert, and its rows by
// the rank that they go to. The package comment defines T, K, E, W, P and S.
type Split struct {
	// Tokens is T, and Ranks is W.
	Tokens, Ranks int
	// ExpertIDs [T, K] i32 and Scores [T, K] f32 are the routing of this rank's tokens.
	ExpertIDs, Scores driver.DevicePtr
	// RowRanks [T, K] i32 is an output. It has the rank that owns the expert of each pair. It has -1
	// if the expert is outside [0, E), or if an earlier pair of the token goes to the same rank.
	RowRanks driver.DevicePtr
	// Pairs [P] u32 has the numbers of the pairs, token·K + slot, sorted by expert, token and slot.
	// Places [T, K] u32 is the inverse: the index in Pairs of each pair, or order.NoRow if the
	// expert is outside [0, E).
	Pairs, Places driver.DevicePtr
	// RowTokens [S] u32 has the tokens to send, sorted by rank, then token. RowPlaces [T, K] u32 is
	// the inverse: the index in RowTokens for a token's first pair of each rank, and order.NoRow
	// for its other pairs.
	RowTokens, RowPlaces driver.DevicePtr
	// PairOffsets [E+1] u32 has the index in Pairs of the first pair of each expert, followed by P.
	// RowOffsets [E+1] u32 has the index in RowTokens of the first row of each rank,
	// followed by S.
	PairOffsets, RowOffsets driver.DevicePtr
}
