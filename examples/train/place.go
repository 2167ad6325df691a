package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/setup"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

// onHost is the value of -device for the float64 reference on the host.
const onHost = "reference"

// place is where the MoE layers run: a device, or the reference on the host.
type place struct {
	name   string
	size   size // the size of -size, or the default size of this place
	create makeExperts
	close  func() error
}

// openPlace opens the device that the flags name.
func openPlace(ctx context.Context, o options, stderr io.Writer) (*place, error) {
	if o.device == onHost {
		if o.rounding != (moe.Rounding{}) {
			return nil, command.Usagef("-device is %s, must be another with -rounding", onHost)
		}
		if o.ranks > 0 {
			return nil, command.Usagef("-device is %s, must be another with -ranks", onHost)
		}
		s, err := o.sizeOr("tiny")
		return &place{"float64 on the host", s, newHostExperts(s.layer, o.freeze), func() error { return nil }}, err
	}
	dev, gpu, err := setup.OpenDevice(ctx, o.device, stderr)
	if err != nil {
		return nil, err
	}
	devices := []driver.Device{dev}
	closeDevice := func() (err error) {
		for _, dev := range devices {
			jit.Forget(dev)
			err = errors.Join(err, dev.Close())
		}
		return err
	}
	own := "tiny"
	if gpu {
		own = "large"
	}
	s, err := o.sizeOr(own)
	if err != nil {
		return nil, errors.Join(err, closeDevice())
	}
	s.layer.Rounding = roundingOf(o.rounding, s)
	logger := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	kept := cache.Open(cache.Options{Dir: o.cache, Logger: logger})
	if o.ranks > 0 {
		name := fmt.Sprintf("%d ranks of %s", o.ranks, dev.Target().Name)
		if o.sums {
			name += ", partial sums"
		}
		if devices, err = o.openRanks(ctx, dev, gpu); err != nil {
			return nil, errors.Join(err, closeDevice())
		}
		g, err := newGroup(ctx, devices, o, s, kept)
		if err != nil {
			return nil, errors.Join(err, closeDevice())
		}
		return &place{name, s, g.newExperts, func() error { return errors.Join(g.Close(), closeDevice()) }}, nil
	}
	d, err := newDevice(ctx, dev, s.layer, s.tokens, o.freeze, kept)
	if err != nil {
		return nil, errors.Join(err, closeDevice())
	}
	return &place{dev.Target().Name, s, d.newExperts, func() error { return errors.Join(d.Close(), closeDevice()) }}, nil
}

// openRanks returns the devices of the ranks of a group, given the open device of -device: all GPUs,
// the one GPU that -device names, or an emulated device for each rank.
func (o options) openRanks(ctx context.Context, dev driver.Device, gpu bool) (list []driver.Device, err error) {
	list = []driver.Device{dev}
	switch {
	case gpu && strings.Contains(o.device, ":"):
	case gpu:
		if err := dev.Close(); err != nil {
			return nil, err
		}
		return open.All(ctx, "cuda")
	default:
		for len(list) < o.ranks && err == nil {
			if dev, err = open.Device(ctx, setup.Emulated); err == nil {
				list = append(list, dev)
			}
		}
	}
	return list, err
}

// sizeOr returns the size that -size names, with the adapter of -lora. Without -size it returns
// the size with the given name.
func (o options) sizeOr(name string) (size, error) {
	if o.size != "" {
		name = o.size
	}
	s, err := findSize(name)
	if o.lora > 0 {
		s.layer.LoRARank, s.layer.LoRAAlpha = o.lora, float64(2*o.lora)
	}
	if err == nil {
		err = s.layer.Check()
	}
	return s, err
}
