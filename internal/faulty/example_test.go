package faulty_test

import (
	"errors"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/internal/faulty"
)

// In this example the second allocation fails. The first one is still live, and Live reports
// it.
func Example() {
	inner, err := emulated.New(emulated.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	dev := faulty.Wrap(inner)
	defer dev.Close()
	dev.Arm(faulty.Fault{Op: faulty.Alloc, N: 2, Err: driver.ErrOutOfMemory})
	first, err := dev.Alloc(1024)
	fmt.Println(err)
	_, err = dev.Alloc(1024)
	fmt.Println(errors.Is(err, driver.ErrOutOfMemory), dev.Count(faulty.Alloc), dev.Live().Allocations)
	fmt.Println(dev.Free(first), dev.Live().Allocations)
	// Output:
	// <nil>
	// true 2 1
	// <nil> 0
}
