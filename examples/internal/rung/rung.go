// Package rung has the parts that the programs of examples/ladder share: the flag -device,
// buffers, and loading and launching kernels. The files of each program then contain only its
// subject.
package rung

import (
	"context"
	"io"

	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/setup"
)

// New parses the flags of a program, which has only -device, and opens the device.
func New(ctx context.Context, p command.Program, args []string, stdout, stderr io.Writer) (*Bench, error) {
	device, err := parse(p, args, stdout)
	if err != nil {
		return nil, err
	}
	dev, gpu, err := setup.OpenDevice(ctx, device, stderr)
	if err != nil {
		return nil, err
	}
	return newBench(dev, gpu), nil
}

// RefuseGPU parses -device for a program that must not run on a GPU. Any name but emulated is
// an error with the given reason.
func RefuseGPU(p command.Program, args []string, stdout io.Writer, reason string) error {
	device, err := parse(p, args, stdout)
	if err == nil && device != "" && device != setup.Emulated {
		err = command.Usagef("-device is %s, must be %s: %s", device, setup.Emulated, reason)
	}
	return err
}

func parse(p command.Program, args []string, stdout io.Writer) (device string, err error) {
	flags := p.Flags()
	name := setup.DeviceFlag(flags)
	err = p.Parse(flags, args, stdout)
	return *name, err
}
