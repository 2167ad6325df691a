// Package decode holds the products of passes over few tokens, whose time is
// that of reading the weights of the experts that the tokens chose.
//
// Operands are swapped: 64 rows of an expert's weights are M of the tensor
// cores' instruction, the expert's tokens its N, 8 to 128 columns, so that one
// token pays for 8 and not for 64. A unit of work is 64 rows of one expert's
// weights times all tokens of that expert; a CTA on each SM takes two of them at
// a time, by turns, so that tokens come to an SM once for 128 rows, or four where
// experts have many tokens: what an SM can take of its neighbours' cache is little
// more than its share of the memory's bandwidth. Where one has ended, a CTA of the next
// kernel starts with its weights while the last units of this one are under way.
//
// For up to 8 tokens there are small CTAs, in layers that package kernel has in its
// table: a stage of their ring has little room for tokens, and so there are more of
// them, and each CTA of the up-projection chooses the experts itself, and makes the table
// of those that have tokens. The last one writes it for the down-projection, which may
// start before it is there.
//
// A lone token has kernels of its own in such layers: every byte is read once, so what counts is
// that all SMs read all of the time. Its experts' rows are shared out evenly, eight
// at a time, one CTA an SM; LoneUp chooses the experts in every CTA, while another
// kernel would have to start and end for it, and in LoneDown a CTA has the same
// rows of all experts, and sums them. Where experts are small CTAs of both lie side
// by side on an SM, and the memory reads W2 as soon as it has read W1. They multiply
// by mma.sync, whose steps wait half as long for each other as wgmma's.
//
// Sums run over the same steps of 16 in the same order as in the kernels of
// many tokens, and give the same bits.
package decode
