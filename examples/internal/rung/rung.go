// Package rung is what the programs of the ladder share: the -device flag,
// buffers, and the way from a built kernel to a launched one. What a program
// teaches stands in its own main.go.
package rung

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"sonicmoe/driver"
	"sonicmoe/driver/open"
)

// Main runs a program and ends the process with 1 when it fails.
func Main(name string, run func(args []string, stdout, stderr io.Writer) error) {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		}
		os.Exit(1)
	}
}

// New parses a program's one flag, -device, opens what it names and makes a
// bench of it.
func New(name string, args []string, stderr io.Writer) (*Bench, error) {
	device, err := parse(name, args, stderr)
	if err != nil {
		return nil, err
	}
	dev, gpu, err := OpenDevice(context.Background(), device, stderr)
	if err != nil {
		return nil, err
	}
	return newBench(dev, gpu), nil
}

// RefuseGPU parses the same flag for a program that a GPU must not run: a name
// other than emulated is an error that gives the reason.
func RefuseGPU(name string, args []string, stderr io.Writer, reason string) error {
	device, err := parse(name, args, stderr)
	if err == nil && device != "" && device != emulated {
		err = fmt.Errorf("-device is %s, must be %s: %s", device, emulated, reason)
	}
	return err
}

const emulated = "emulated"

func parse(name string, args []string, stderr io.Writer) (device string, err error) {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&device, "device", "", "cuda, cuda:N or emulated; empty: a GPU, else the emulated device")
	if err := flags.Parse(args); err != nil {
		return "", err
	}
	if flags.NArg() > 0 {
		return "", fmt.Errorf("%q is no flag, all arguments are", flags.Arg(0))
	}
	return device, nil
}

// OpenDevice opens the named device; with no name a GPU, else, saying so on stderr,
// the emulated device. gpu reports which of them it is.
func OpenDevice(ctx context.Context, name string, stderr io.Writer) (dev driver.Device, gpu bool, err error) {
	if name != "" {
		dev, err = open.Device(ctx, name)
		return dev, name != emulated, err
	}
	if dev, err = open.Device(ctx, "cuda"); !errors.Is(err, driver.ErrNoDevice) {
		return dev, true, err
	}
	fmt.Fprintf(stderr, "no GPU, so the emulated device it is: %v\n", err)
	dev, err = open.Device(ctx, emulated)
	return dev, false, err
}
