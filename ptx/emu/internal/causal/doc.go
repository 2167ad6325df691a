// Package causal represents knowledge about the past: which accesses a warp, a barrier or a word of
// memory knows to have happened. Within a cluster it is a vector clock; about other clusters it is
// a copy of their clocks. The race checks of package emu compare accesses with this knowledge.
package causal
