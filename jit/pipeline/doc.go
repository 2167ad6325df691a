// Package pipeline is how a kernel's warps work together, written once:
// what a CTA shares ([CTA]), roles, rings of shared-memory stages guarded by
// mbarriers, and phases.
//
// A [Ring] has stages that a producer fills and consumers drain. Pass i of
// either side uses stage i mod Stages; a [Cursor] holds the stage and the
// parity of the phase, so a kernel says Acquire, Wait and Release and never
// counts phases.
package pipeline
