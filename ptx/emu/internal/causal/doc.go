// Package causal holds what a warp, a barrier or a word of memory knows to be past: vector
// clocks over the components of a cluster, and copies of the clocks of other clusters. The
// race checks of package emu compare accesses with this knowledge.
package causal
