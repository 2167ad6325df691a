// Package open opens a device by name: "cuda" for the first NVIDIA GPU, "cuda:1" for the
// second, "emulated" for the emulator. It can also open all GPUs at once. A package with
// another kind of device, such as driver/mumax, adds the kind with gpu.Register when a program
// imports the package.
//
// Package open never opens another kind than the one that was named. A program that wants a
// fallback opens the second kind itself.
package open

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
)

// builtin lists the kinds that every program has, the default first.
var builtin = []gpu.Kind{
	{Name: "cuda", Numbered: true,
		Open:  func(ctx context.Context, n int) (driver.Device, error) { return cuda.Open(ctx, n, cuda.Options{}) },
		Count: func() (int, error) { return cuda.Count(cuda.Options{}) }},
	{Name: "emulated",
		Open: func(ctx context.Context, _ int) (driver.Device, error) {
			return emulated.New(emulated.Options{Context: ctx})
		},
		Count: func() (int, error) { return 1, nil }},
}

// kinds returns the kinds of this program.
func kinds() []gpu.Kind { return append(slices.Clone(builtin), gpu.Kinds()...) }

// find returns the kind with that name. "" is the default kind.
func find(name string) (gpu.Kind, bool) {
	if name == "" {
		return builtin[0], true
	}
	all := kinds()
	if i := slices.IndexFunc(all, func(k gpu.Kind) bool { return k.Name == name }); i >= 0 {
		return all[i], true
	}
	return gpu.Kind{}, false
}

// Device opens the device with the given name. "" means "cuda", the first GPU. An unknown name
// is an error that lists the known names and matches driver.ErrInvalid. If there is no usable
// GPU, the error wraps driver.ErrNoDevice and lists what was tried. On the emulated device, a
// kernel runs inside the call that launches it, and ends when ctx ends.
func Device(ctx context.Context, name string) (driver.Device, error) {
	kind, number, numbered := strings.Cut(name, ":")
	b, ok := find(kind)
	if !ok || numbered && (!b.Numbered || kind == "") {
		return nil, unknown(name)
	}
	n := 0
	if numbered {
		var err error
		if n, err = strconv.Atoi(number); err != nil || n < 0 {
			return nil, unknown(name)
		}
	}
	return b.Open(ctx, n)
}

// All opens every device of a kind. For "cuda" or "" these are all GPUs that the driver
// reports, in the driver's order. For "emulated" it is one device. If the error is nil there is
// at least one device. Otherwise no device is left open. The errors are the same as for
// [Device].
func All(ctx context.Context, kind string) ([]driver.Device, error) {
	b, ok := find(kind)
	if !ok {
		return nil, unknown(kind)
	}
	n, err := b.Count()
	if err != nil {
		return nil, err
	}
	return each(ctx, b, max(n, 1))
}

// each opens the first n devices. If one fails, it closes the others.
func each(ctx context.Context, b gpu.Kind, n int) ([]driver.Device, error) {
	var list []driver.Device
	for i := range n {
		dev, err := b.Open(ctx, i)
		if err != nil {
			for _, d := range list {
				_ = d.Close() // the first error is the one to return
			}
			return nil, err
		}
		list = append(list, dev)
	}
	return list, nil
}

// Names returns the names that Device accepts in this program. N stands for a
// device number.
func Names() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.Name)
		if k.Numbered {
			names = append(names, k.Name+":N")
		}
	}
	return names
}

func unknown(name string) error {
	err := &driver.Error{Op: "open device", Kind: driver.ErrInvalid,
		Text: fmt.Sprintf("no device is named %q, must be one of %s (N counts from 0)", name, strings.Join(Names(), ", "))}
	if kind, _, _ := strings.Cut(name, ":"); kind == "mumax" {
		err.Kind = driver.ErrUnsupported
		err.Text += "; mumax is there in programs that import sonicmoe/driver/mumax and are built with the tag mumax and with cgo"
	}
	return err
}
