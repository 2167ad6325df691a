package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"sonicmoe/cache"
	"sonicmoe/examples/bench/report"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

// noDriverCache is an environment variable. If it is "1" when the process starts, the driver
// does not use its own cache of compiled kernels.
const noDriverCache = "CUDA_CACHE_DISABLE"

// driverCache returns a warning that the driver's own cache may have kernels of an earlier run,
// unless that cache is off.
func driverCache(disabled string) []string {
	if disabled == "1" {
		return nil
	}
	return []string{"start-up: the driver's own cache may have kernels of earlier runs: set " + noDriverCache + "=1 to compile them all"}
}

// startups measures moe.New with cache directories of its own. It does so only in the first
// pass.
func (b *bench) startups(t *timer, u *subject, r *report.Row) error {
	if !b.withStartup || b.pass.name != b.passes[0].name {
		return nil
	}
	for _, of := range []struct {
		what    string
		options []moe.Option
	}{
		{"forward", []moe.Option{moe.WithoutBackward()}},
		{"forward and backward, one kind of gradients", []moe.Option{moe.WithGradients(u.row.Config.Type, false)}},
		{"forward and backward", nil},
	} {
		s, err := b.startup(t.ctx, u.row.Config, of.options)
		if err != nil {
			return err
		}
		s.What = of.what
		r.Startup = append(r.Startup, s)
	}
	return nil
}

func (b *bench) startup(ctx context.Context, c moe.Config, options []moe.Option) (s report.Startup, err error) {
	dir, err := os.MkdirTemp("", "bench-startup-")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, of := range []struct {
		ms     *float64
		forget bool // drop the loaded kernels first, so that moe.New loads them again
		origin jit.Origin
	}{{&s.ColdMS, true, jit.Compiled}, {&s.WarmMS, true, jit.Cached}, {&s.AgainMS, false, jit.Loaded}} {
		if of.forget {
			jit.Forget(b.dev)
		}
		opts := append([]moe.Option{moe.WithLogger(b.log), moe.WithCache(cache.Open(cache.Options{Dir: dir, Logger: b.log}))}, options...)
		start := time.Now()
		l, err := moe.New(ctx, b.dev, c, opts...)
		if err != nil {
			return s, err
		}
		*of.ms = report.Milliseconds(time.Since(start))
		s.Kernels = len(l.Kernels())
		for name, got := range l.LoadedFrom() {
			if got != of.origin.String() {
				return s, fmt.Errorf("start-up: the %s kernel was %v, should have been %v", name, got, of.origin)
			}
		}
	}
	return s, nil
}
