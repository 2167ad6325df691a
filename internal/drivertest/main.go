package drivertest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"sonicmoe/driver"
)

// Name is the device that tests run on: the one that SONICMOE_DEVICE names, or
// the emulated one.
func Name() string { return cmp.Or(os.Getenv("SONICMOE_DEVICE"), "emulated") }

// Main is the exit status of a package's tests, those of m, which run on the
// device called Name. Where open can't open that, one line says why in place of
// a failure for each test:
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
	// An emulated device makes much garbage and keeps little: by default a tenth
	// of a test's time went into collecting it.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(4 << 30)
	return m.Run()
}
