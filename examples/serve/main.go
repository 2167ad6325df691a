// Command serve decodes: several layers of a model run one after the other over
// the tokens that have arrived, again and again.
//
//	go run ./examples/serve -plot serve.png
//	go run ./examples/serve -row "Mixtral 8x7B" -layers 4 -load 0.8 -time 1m
//
// Tokens arrive at random times (a Poisson process), one of each sequence that
// is being continued. A step takes all that wait, up to -tokens of them, through
// all layers; what a token waits for is the step under way and its own. There is
// a graph for each number of tokens, captured once, so that a step is one launch:
// nothing is allocated, nothing is padded, and a token's results are the same
// bits in every batch.
//
// What stands between the layers of a model, attention above all, is left out:
// each layer reads the tokens of the step.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"time"

	"sonicmoe/cache"
	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/picture"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

var program = command.Program{Name: "serve", Purpose: "decodes with several layers, tokens arriving at random, and tells latency and throughput."}

func main() { program.Main(run) }

// emulatedRow is what the emulated device decodes in a tenth of a second.
var emulatedRow = spec.Row{Name: "small", Config: moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 8, TopK: 2}}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	set := program.Flags()
	device, dir, sizes := command.DeviceFlag(set), command.CacheFlag(set), command.SizeFlags(set, false)
	layers := set.Int("layers", 0, "`layers` of the model (default: 4, emulated 2)")
	load := set.Float64("load", 0.5, "tokens arrive at this `share` of the rate of full steps")
	length := set.Duration("time", 0, "how `long` tokens arrive (default: 10s, emulated 1s)")
	seed := set.Uint64("seed", 1, "`number` that the times of arrival follow from")
	plot := set.String("plot", "", "draw the latencies to `file`.png or .svg")
	if err := program.Parse(set, args, stdout); err != nil || sizes.Listed(stdout) {
		return err
	}
	if *plot != "" {
		if err := picture.Check(*plot); err != nil {
			return command.Usagef("%w", err)
		}
	}
	if *layers < 0 || *length < 0 || !(*load > 0 && *load <= mostLoad) {
		return command.Usagef("-layers %d, -time %v, -load %v: must not be negative, -load above 0 and at most %v", *layers, *length, *load, mostLoad)
	}
	dev, gpu, err := command.OpenDevice(ctx, *device, stderr)
	if err != nil {
		return err
	}
	defer dev.Close()
	row := emulatedRow
	switch rows := sizes.Rows(); {
	case len(rows) > 0:
		row = rows[0]
	case gpu:
		if row, err = command.Row("Qwen3-30B-A3B"); err != nil {
			return err
		}
	}
	byDefault(layers, gpu, 4, 2)
	most := sizes.Tokens()
	byDefault(&most, gpu, 64, 4)
	row.Config.TokensHint = most
	byDefault(length, gpu, 10*time.Second, time.Second)
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	m, err := newModel(ctx, dev, row.Config, *layers, most, cache.Open(cache.Options{Dir: *dir, Logger: log}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	full, err := m.stepTime(ctx, most)
	if err != nil {
		return err
	}
	rate := *load * float64(most) / full.Seconds()
	fmt.Fprintf(stdout, "%d layers of %s (%v) on %s, steps of up to %d tokens, a full one takes %v\n",
		*layers, row.Name, row.Config, dev.Target().Name, most, full.Round(time.Microsecond))
	t := newTraffic(rate, *seed)
	runtime.GC()
	before := memory(dev)
	if err := t.run(ctx, m, *length); err != nil {
		return err
	}
	t.report(stdout, before, memory(dev))
	if *plot != "" {
		return t.draw(fmt.Sprintf("%d layers of %s on %s", *layers, row.Name, dev.Target().Name), *plot, gpu)
	}
	return nil
}

// mostLoad bounds -load: all that arrives is served in the end, which takes -load
// times -time.
const mostLoad = 1000

// byDefault gives a flag that is 0 one of two values.
func byDefault[T int | time.Duration](flag *T, gpu bool, onGPU, emulated T) {
	switch {
	case *flag != 0:
	case gpu:
		*flag = onGPU
	default:
		*flag = emulated
	}
}
