// Package pipeline lets the warps of a kernel work together: the memory and
// barriers that a CTA shares ([CTA]), roles, and rings of shared-memory stages
// guarded by mbarriers.
//
// A [Ring] has stages that a producer fills and consumers drain. Step i of either
// side uses stage i mod Stages. A [Cursor] tracks the stage and the parity of its
// phase, so a kernel calls Acquire, Wait and Release and never counts phases.
package pipeline
