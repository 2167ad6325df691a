package emulated_test

import (
	"context"
	"errors"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
	"sonicmoe/jit"
	"sonicmoe/ptx"
	"sonicmoe/ptx/emu"
)

// This example runs a kernel that stores past the end of its buffer. A GPU may not notice. The
// emulated device returns an error that names the kernel and the instruction.
func Example() {
	type args struct{ Out driver.DevicePtr }
	k := jit.NewBuilder[args]("past", 32, 1)
	ptx.StGlobal(k.Ptr(&k.Args.Out).Index(k.TidX(), 4), ptx.Uint(1))
	kernel, err := k.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	dev, err := emulated.New(emulated.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	defer jit.Forget(dev)
	fn, err := jit.Of(dev).Load(ctx, nil, kernel.Source("past"), gpu.CompileOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := dev.NewStream()
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := dev.Alloc(4 * 31) // one word too short
	if err != nil {
		fmt.Println(err)
		return
	}
	err = kernel.Launcher(fn).Launch(s, args{Out: out})
	var fault *emu.Fault
	if errors.As(err, &fault) {
		fmt.Println(fault.Kind, "in kernel", fault.Kernel)
	}
	fmt.Println(errors.Is(err, driver.ErrBroken), errors.Is(dev.Err(), driver.ErrBroken))
	// Output:
	// access out of bounds in kernel past
	// true true
}
