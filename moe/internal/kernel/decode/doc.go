// Package decode has the products of small batches, whose time is the time of reading
// the weights of the chosen experts.
//
// Operands are swapped: 64 rows of an expert's weights are M of wgmma, the expert's
// tokens are N, 8 to 128 columns. One token then costs 8 columns instead of 64 rows. A
// unit is 64 rows of one expert's weights times all tokens of that expert. A tile of a CTA
// is two units (narrow), or four (wide) if experts have many tokens, so that each token is
// loaded once for 128 or 256 rows of weights. One CTA runs on each SM and draws tiles from
// a counter. When a CTA has no more tiles, a CTA of the next kernel starts to load its
// weights.
//
// Tiny CTAs are for up to 8 tokens. A stage has little room for tokens, so the ring has
// more stages. Each CTA of the up-projection chooses the experts itself and makes the
// table of the experts that have tokens. The last CTA writes it for the down-projection,
// which may start earlier and polls the table's length.
//
// A single token has kernels of its own. Every byte of the weights is read once, so all
// SMs must read all of the time. The rows of the token's experts are shared out evenly,
// eight at a time. SingleUp chooses the experts in every CTA, because a kernel for the
// choice would have to start and end first. In SingleDown a CTA has the same rows of all
// experts and sums them. If experts are small, CTAs of both products share an SM, and
// reading W2 follows reading W1 without a gap. These kernels multiply by mma.sync, whose
// dependent steps have half of wgmma's latency.
//
// Packed weights come in the units of package fragments. The math warpgroups unpack them to
// registers, from which wgmma reads them as A, so they pass through shared memory packed.
// Unpacking takes most of an SM's issue slots. Four warpgroups do it, addresses are in
// uniform registers, and the fence between copies of tokens and wgmma has a warp of its own.
//
// Sums run over the same steps of 16 in the same order as in the kernels of large
// batches, and give the same bits.
package decode
