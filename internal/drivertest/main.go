package drivertest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"sonicmoe/driver"
)

// Name returns the name of the device for tests: SONICMOE_DEVICE, or "emulated".
func Name() string { return cmp.Or(os.Getenv("SONICMOE_DEVICE"), "emulated") }

// Main runs a package's tests on the device called Name, and returns their exit status. If
// open cannot open the device, it prints one line with the reason, instead of a failure for
// each test:
//
//	func TestMain(m *testing.M) { os.Exit(drivertest.Main(m, open.Device)) }
func Main(m interface{ Run() int }, open func(context.Context, string) (driver.Device, error)) int {
	dev, err := open(context.Background(), Name())
	if err == nil {
		err = dev.Close()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "SONICMOE_DEVICE=%s: %v\n", Name(), err)
		return 1
	}
	// An emulated device makes much garbage and keeps little of it. The garbage collector
	// therefore runs less often than by default, within a limit.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(4 << 30)
	return m.Run()
}
