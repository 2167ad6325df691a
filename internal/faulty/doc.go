// Package faulty wraps a [driver.Device] for tests: it counts calls, fails
// or holds up chosen ones, reports what is still alive, and can throw launches
// away.
//
//	dev := faulty.Wrap(inner)
//	dev.Arm(faulty.Fault{Op: faulty.Launch, N: 3}) // the third launch from here fails
//
// A call that is made to fail never reaches the wrapped device, so it has no
// effect. The wrapper allocates nothing on launches, and passes the
// conformance suite of package drivertest.
package faulty
