package cuda_test

import (
	"context"
	"errors"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
)

// ExampleOpen shows that Open returns the reason if it cannot open a device. It never opens
// another kind of device instead.
func ExampleOpen() {
	dev, err := cuda.Open(context.Background(), 0, cuda.Options{Library: "libno-such-driver.so"})
	if errors.Is(err, driver.ErrNoDevice) {
		fmt.Println("no GPU here")
		return
	}
	defer dev.Close()
	fmt.Println(dev.Target().Name)
	// Output: no GPU here
}
