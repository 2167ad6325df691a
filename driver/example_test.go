package driver_test

import (
	"errors"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
)

// ExampleError shows that an error describes what was wrong and matches a kind.
func ExampleError() {
	dev, err := emulated.New(emulated.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	_, err = dev.Alloc(-1)
	fmt.Println(errors.Is(err, driver.ErrInvalid), errors.Is(err, driver.ErrBroken), dev.Err())
	// Output: true false <nil>
}
