// Package open finds a device by name: "cuda" for the first NVIDIA GPU,
// "cuda:1" for the second, "emulated" for the emulator; "mumax" and "mumax:1"
// are the GPUs through package driver/mumax, in programs built with its tag. Or
// it opens all GPUs at once.
//
// It never falls back from one to another: whoever wants that asks twice and
// says so.
package open

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/mumax"
)

// backend opens devices of one kind.
type backend struct {
	name string
	// numbered says that a device number may follow the name: "cuda:1".
	numbered bool
	open     func(ctx context.Context, number int) (driver.Device, error)
	// count is how many there are; 0 where opening the first will say why.
	count func() (int, error)
}

// backends are the kinds of device, the default one first.
var backends = []backend{
	{"cuda", true, func(ctx context.Context, n int) (driver.Device, error) { return cuda.Open(ctx, n, cuda.Options{}) }, gpus},
	{"mumax", true, func(ctx context.Context, n int) (driver.Device, error) { return mumax.Open(ctx, n, mumax.Options{}) }, gpus},
	{"emulated", false, func(context.Context, int) (driver.Device, error) { return emulated.New(emulated.Options{}) }, func() (int, error) { return 1, nil }},
}

// Device opens the device of the given name; "" means "cuda", the first GPU.
// An unknown name is an error that lists the known ones and matches
// driver.ErrInvalid; where there is no usable GPU the error wraps
// driver.ErrNoDevice and says what was tried.
func Device(ctx context.Context, name string) (driver.Device, error) {
	if name == "" {
		name = backends[0].name
	}
	kind, number, numbered := strings.Cut(name, ":")
	for _, b := range backends {
		if b.name != kind || numbered && !b.numbered {
			continue
		}
		n := 0
		if numbered {
			var err error
			if n, err = strconv.Atoi(number); err != nil || n < 0 {
				return nil, unknown(name)
			}
		}
		return b.open(ctx, n)
	}
	return nil, unknown(name)
}

// gpus counts the GPUs that the driver shows.
func gpus() (int, error) {
	d := cuda.Diagnose(cuda.Options{})
	if d.Failure != nil && len(d.Devices) > 0 {
		return 0, &driver.Error{Op: fmt.Sprintf("open GPU %d", len(d.Devices)), Kind: driver.ErrNoDevice, Cause: d.Failure}
	}
	return len(d.Devices), nil
}

// All opens every device of a kind: each GPU that the driver shows, in its
// order, for "cuda" or ""; one device for "emulated". There is at least one
// when the error is nil, and none stays open when it is not. Errors are those
// of Device.
func All(ctx context.Context, kind string) ([]driver.Device, error) {
	if kind == "" {
		kind = backends[0].name
	}
	for _, b := range backends {
		if b.name != kind {
			continue
		}
		n, err := b.count()
		if err != nil {
			return nil, err
		}
		return each(ctx, b, max(n, 1))
	}
	return nil, unknown(kind)
}

// each opens the first n devices, all or none.
func each(ctx context.Context, b backend, n int) ([]driver.Device, error) {
	var list []driver.Device
	for i := range n {
		dev, err := b.open(ctx, i)
		if err != nil {
			for _, d := range list {
				_ = d.Close() // the error to report is the first
			}
			return nil, err
		}
		list = append(list, dev)
	}
	return list, nil
}

// Names are the names that Device takes in this program, with N for a device
// number.
func Names() []string {
	var names []string
	for _, b := range backends {
		if b.name == "mumax" && !mumax.Built {
			continue // it would only say so
		}
		names = append(names, b.name)
		if b.numbered {
			names = append(names, b.name+":N")
		}
	}
	return names
}

func unknown(name string) error {
	return &driver.Error{Op: "open device", Kind: driver.ErrInvalid,
		Text: fmt.Sprintf("no device is named %q, must be one of %s (N counts from 0)", name, strings.Join(Names(), ", "))}
}
