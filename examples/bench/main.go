// Command bench measures a layer's speed and compares it with the roofline and with the
// recorded speeds of other implementations.
//
//	go run ./examples/bench -rows all                      # every recorded row
//	go run ./examples/bench -row "7B n=256" -full          # also with a cold L2 cache, and sustained
//	go run ./examples/bench -shape 4096,1408,128,8 -tokens 32768   # d,n,E,K
//	go run ./examples/bench -rows slice -json bench.json -plot bench.png
//	go run ./examples/bench -row "7B n=256" -routing all   # skewed routing
//	go run ./examples/bench -rows slice -pass both         # forward, then backward
//	go run ./examples/bench -rows slice -pass both -fit    # several tilings, and the cost model fitted to them
//	go run ./examples/bench -row "7B n=256" -startup       # the time of moe.New
//	go run ./examples/bench -row "7B n=256" -alone 2s      # the energy of each kernel in steady load
//	go run ./examples/bench -causes                        # the energy of tensor cores, caches, memory and issue
//	go run ./examples/bench -rows slice -against OLD       # time and energy of two builds, in turns
//	go run ./examples/bench -decode -plot decode.png       # small batches, by bandwidth
//	go run ./examples/bench -decode -weights mxfp4         # the same with packed weights; also without -decode
//	go run ./examples/bench -rounding -plot rounding.png   # token rounding, by experts
//	go run ./examples/bench -from examples/bench/h200/speed.json -plot speed.png   # stored measurements again
//
// A row is a named size of layer and batch. A point is the tiling of one product's kernel.
// Times are device times between events: medians of back-to-back repeats after a warm-up, with
// a warm L2 cache. Without a GPU, bench runs on the emulated device, whose times mean nothing.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"sonicmoe/examples/bench/report"
	"sonicmoe/examples/internal/command"
	"sonicmoe/moe/tools"
)

var program = command.Program{Name: "bench", Purpose: "measures a layer's speed and compares it with the roofline and with the recorded speeds of other implementations."}

func main() { program.Main(run) }

// run runs the command. If any row fails, it returns an error after all rows were measured.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stdout)
	if err != nil {
		return err
	}
	if o.list {
		return nil
	}
	if o.from != "" {
		return show(ctx, stdout, o.from, o.plot)
	}
	if len(o.fitFrom) > 0 {
		return fitFiles(ctx, stdout, o.fitFrom)
	}
	people := stdout
	if o.json == stdoutName || o.withTurns {
		people = stderr
	}
	b := &bench{options: o, ctx: ctx, out: people, stdin: os.Stdin, stdout: stdout, stderr: stderr, log: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	if err := b.open(); err != nil {
		return err
	}
	if b.plot != "" && !b.gpu {
		return errors.Join(errors.New("-plot needs a GPU: times of the emulated device mean nothing; -from draws stored measurements"), b.close())
	}
	switch {
	case b.other != "":
		err = b.against()
	case b.withCauses:
		err = b.causes()
	case b.withDecode:
		err = b.decode()
	case b.withRounding:
		err = b.rounding()
	default:
		err = b.all()
	}
	return errors.Join(err, b.close())
}

// all measures the rows, and prints and writes the report.
func (b *bench) all() error {
	rows, err := b.sizes(b.gpu)
	if err != nil {
		return err
	}
	report.PrintHead(b.out, b.report)
	if err := b.measure(rows); err != nil {
		return err
	}
	for _, s := range b.report.Sections() {
		report.PrintSummary(b.out, s)
	}
	var errs []error
	if b.withFit {
		errs = append(errs, b.fitPoints())
	}
	errs = append(errs, b.outputs())
	if n := b.report.Failed(); n > 0 {
		errs = append(errs, fmt.Errorf("%d of %d rows failed", n, len(rows)*len(b.passes)))
	}
	return errors.Join(errs...)
}

// fitPoints fits the cost model's constants to the measured tilings.
func (b *bench) fitPoints() error {
	f, err := report.NewFit(tools.H200(), b.report)
	if err != nil {
		return err
	}
	b.report.Fit = f
	report.PrintFit(b.out, f)
	return nil
}

// fitFiles fits the cost model's constants to the tilings in the reports of earlier runs.
func fitFiles(ctx context.Context, out io.Writer, names []string) error {
	var reports []*report.Report
	for _, name := range names {
		r, err := report.Read(ctx, name)
		if err != nil {
			return err
		}
		reports = append(reports, r)
	}
	f, err := report.NewFit(tools.H200(), reports...)
	if err != nil {
		return err
	}
	report.PrintFit(out, f)
	return nil
}
