// Package faulty wraps a [gpu.Device] for tests. The wrapper counts calls, can make chosen
// calls fail or wait, can discard launches, and reports objects that were not released.
//
//	dev := faulty.Wrap(inner)
//	dev.Arm(faulty.Fault{Op: faulty.Launch, N: 3}) // the third launch from here fails
//
// A call that is made to fail does not reach the wrapped device, so it has no effect. A launch
// through the wrapper does not allocate. The wrapper passes the conformance suite of package
// drivertest.
package faulty
