// Package parallel spreads the experts of a layer over ranks, with one GPU's bits.
//
// A group has W ranks, each with a device. Tokens are sharded: each rank has some of them, in
// the order of the ranks, and as many as it likes. Rank r owns the experts r·E/W to
// (r+1)·E/W - 1, rounded down, and the router is replicated. A pass sends each token once to
// every rank that owns one of its experts, multiplies it there, and sends the rows of Y back
// unsummed. The token's own rank adds them in the order of the slots, so that O has the bits
// of one GPU for every number of ranks.
//
//	home    router, plan by rank     pack X -> exchange -> window
//	owner   plan by expert, up from the window, down, pack Y -> exchange
//	home    O[t] = Σ_k score·Y, in the order of k
//
// The experts of a rank are in chunks. The rows of a chunk go home while the next chunk is
// multiplied.
//
// A backward pass sends the rows of dO in the same way, and the rows of dX come back. An
// expert's weights get their gradients on its owner alone, from rows in the order of all
// tokens. The router's gradient is summed over the ranges of tokens that one GPU has, each on
// one rank, and then in the order of the ranges.
//
// Nothing is dropped: [Rank.Sizes] returns the memory of the worst case, in which all tokens
// go to one rank. Counts are exchanged first, so a pass waits for the device once before it
// moves rows.
//
// A [Transport] moves the bytes. [Local] is for the devices of one process. A pass that fails
// on one rank fails on all of them: every wait has a deadline, and an *[Error] names the
// rank, the phase and the ranks that are missing.
//
// The names here may change: v1 does not promise them yet.
package parallel
