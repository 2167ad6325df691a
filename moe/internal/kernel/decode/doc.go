// Package decode has the products of small batches. Their time is the time of reading the weights
// of the chosen experts.
//
// The operands of wgmma are swapped. Its M dimension is 64 rows of an expert's weights. Its N
// dimension is the expert's tokens, rounded up to 8 to 128 columns. One token then costs 8 columns
// instead of 64 rows. A unit of work is 64 rows of one expert's weights times all tokens of that
// expert. A tile of a CTA is two units (narrow), or four (wide) if experts have many tokens, so
// that each token is loaded once for 128 or 256 rows of weights. One CTA runs on each SM and draws
// tiles from a counter. Tiles of the last wave have fewer units, so that more CTAs have one. When a CTA
// has no more tiles, a CTA of the next kernel starts on its SM and
// loads the first weights.
//
// Tiny CTAs are for up to 8 tokens. A stage of their ring needs little room for tokens, so the ring
// has more stages. Each CTA of the up-projection chooses the experts itself and makes the table of
// the experts that have tokens. The last CTA writes the table for the down-projection. The
// down-projection may start earlier, and polls the table's length.
//
// A single token has kernels of its own. Every byte of the weights is read once, so all SMs must
// read all of the time. The rows of the token's experts are divided evenly among the CTAs, eight
// rows at a time. SingleUp chooses the experts in every CTA, because a kernel for the choice would
// have to start and end first. In SingleDown a CTA has the same rows of all experts, and sums over
// the experts. If experts are small, CTAs of both products share an SM, and the loads of W2 follow
// the loads of W1 without a gap. These kernels multiply by mma.sync, whose dependent steps have
// half of the latency of wgmma's.
//
// Packed weights are stored in the layout of package fragments. They pass through shared memory
// packed. The math warpgroups unpack them to registers, and wgmma reads operand A from there.
// Unpacking takes most of an SM's issue slots. Therefore four warpgroups unpack, addresses are in
// uniform registers, and one warp issues the fence between the copies of tokens and wgmma for all.
// For up to 8 tokens each warp multiplies its 16 rows by mma.sync, which takes fewer instructions.
// Wide CTAs of three warpgroups multiply each unpacked weight by up to 128 tokens. Mid CTAs have four
// warpgroups and up to 96 tokens. Both unpack each step of 16 columns while the wgmma of the step before
// runs, have a loop for each width, and store their results by TMA. Wide CTAs serve batches of any
// size. CTAs of 32 tokens have smaller stages, so more weights are in flight.
// Their down-projection starts with the experts whose up-projection is complete, while the last tiles of
// the up-projection run. For a single token each warp copies the codes of its 16 rows by cp.async to a
// ring of its own in shared memory, and multiplies by mma.sync.
//
// Sums run over the same steps of 16 in the same order as in the kernels of large batches, and give
// the same bits.
package decode
