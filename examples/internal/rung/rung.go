// Package rung is what the programs of the ladder share: the -device flag,
// buffers, and the way from a built kernel to a launched one. What a program
// teaches stands in its own main.go.
package rung

import (
	"context"
	"io"

	"sonicmoe/examples/internal/command"
)

// New parses a program's one flag, -device, opens what it names and makes a
// bench of it.
func New(ctx context.Context, p command.Program, args []string, stdout, stderr io.Writer) (*Bench, error) {
	device, err := parse(p, args, stdout)
	if err != nil {
		return nil, err
	}
	dev, gpu, err := command.OpenDevice(ctx, device, stderr)
	if err != nil {
		return nil, err
	}
	return newBench(dev, gpu), nil
}

// RefuseGPU parses the same flag for a program that a GPU must not run: a name
// other than emulated is an error that gives the reason.
func RefuseGPU(p command.Program, args []string, stdout io.Writer, reason string) error {
	device, err := parse(p, args, stdout)
	if err == nil && device != "" && device != command.Emulated {
		err = command.Usagef("-device is %s, must be %s: %s", device, command.Emulated, reason)
	}
	return err
}

func parse(p command.Program, args []string, stdout io.Writer) (device string, err error) {
	flags := p.Flags()
	name := command.DeviceFlag(flags)
	err = p.Parse(flags, args, stdout)
	return *name, err
}
