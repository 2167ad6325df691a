// Package faulty wraps a [gpu.Device] for tests: it counts calls, fails or delays chosen
// ones, reports objects that were not released, and can discard launches.
//
//	dev := faulty.Wrap(inner)
//	dev.Arm(faulty.Fault{Op: faulty.Launch, N: 3}) // the third launch from here fails
//
// A call that is made to fail does not reach the wrapped device, so it has no effect.
// Launches through the wrapper do not allocate, and it passes the conformance suite of
// package drivertest.
package faulty
