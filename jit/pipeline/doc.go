// Package pipeline has the parts with which the warps of a kernel work together: the shared memory
// and barriers of a CTA ([CTA]), roles ([Role]), and rings of shared-memory stages that mbarriers
// guard ([Ring]).
//
// A producer fills the stages of a [Ring], and consumers drain them. Step i of a producer or
// consumer uses stage i mod Stages. A [Cursor] keeps track of the stage and of its phase's parity,
// so a kernel only calls Acquire, Wait and Release, and never counts phases.
package pipeline
