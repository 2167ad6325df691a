package main

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"sonicmoe/cache"
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
		s, err := o.sizeOr("tiny")
		return &place{"float64 on the host", s, newHostExperts(s.layer, o.freeze), func() error { return nil }}, err
	}
	dev, gpu, err := setup.OpenDevice(ctx, o.device, stderr)
	if err != nil {
		return nil, err
	}
	closeDevice := func() error {
		jit.Forget(dev)
		return dev.Close()
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
	d, err := newDevice(ctx, dev, s.layer, s.tokens, o.freeze, cache.Open(cache.Options{Dir: o.cache, Logger: logger}))
	if err != nil {
		return nil, errors.Join(err, closeDevice())
	}
	return &place{dev.Target().Name, s, d.newExperts, func() error { return errors.Join(d.Close(), closeDevice()) }}, nil
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
