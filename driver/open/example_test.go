package open_test

import (
	"context"
	"errors"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/driver/open"
)

// ExampleDevice opens a device by its name. Device never opens another kind instead. A program
// that wants the emulator if there is no GPU must open the emulator itself.
func ExampleDevice() {
	ctx := context.Background()
	for _, name := range []string{"emulated", "abacus"} {
		dev, err := open.Device(ctx, name)
		switch {
		case errors.Is(err, driver.ErrNoDevice):
			fmt.Println("no GPU here:", err)
		case errors.Is(err, driver.ErrInvalid):
			fmt.Println("no such kind")
		case err != nil:
			fmt.Println(err)
		default:
			fmt.Println(dev.Target().Arch, dev.Close())
		}
	}
	// Output:
	// sm_90a <nil>
	// no such kind
}
