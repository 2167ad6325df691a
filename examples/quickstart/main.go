// Command quickstart runs one MoE layer's forward pass and says how it went:
// on a GPU the 7B n=256 layer at full size, without one a small layer on the
// emulated device.
//
//	go run ./examples/quickstart                   # a GPU, else the emulator
//	go run ./examples/quickstart -device emulated
//	go run ./examples/quickstart -row "30B n=1024" # another known size
//	go run ./examples/quickstart -listing up       # PTX with its Go lines
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/examples/internal/rung"
	"sonicmoe/moe"
	"sonicmoe/moe/spec"
)

// started is as early as a Go program can look at the clock.
var started = time.Now()

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "quickstart:", err)
		}
		os.Exit(1)
	}
}

// smallTokens and small are the layer of the emulated device.
const smallTokens = 192

var small = moe.Config{Hidden: 256, Intermediate: 128, NumExperts: 8, TopK: 2}

type job struct {
	ctx     context.Context
	out     io.Writer
	dev     driver.Device
	config  moe.Config
	tokens  int
	sonicMS float64
	boost   float64 // of the weights, so that a small layer's outputs are of order 1
	log     *slog.Logger
	dir     string
	gpu     bool
}

func run(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	device := flags.String("device", "", "cuda, cuda:N or emulated; empty: a GPU, else the emulated device")
	flags.StringVar(device, "driver", "", "the same as -device; mumax in programs built with that tag")
	row := flags.String("row", "7B n=256", "size to run on a GPU: a row's name, see -rows")
	rows := flags.Bool("rows", false, "list the known sizes")
	listing := flags.String("listing", "", "print this kernel's PTX with the Go line behind each instruction: router, count, plan, up, up-inference, down, aggregate")
	dir := flags.String("cache", "", "cache directory, or off (default: the user's)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *rows {
		for _, r := range spec.Rows() {
			fmt.Fprintf(stdout, "%-16s T=%d %v\n", r.Name, r.Tokens, r.Config)
		}
		return nil
	}
	j := job{ctx: context.Background(), out: stdout, dir: *dir, log: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	var err error
	if j.dev, j.gpu, err = rung.OpenDevice(j.ctx, *device, stderr); err != nil {
		return err
	}
	defer j.dev.Close()
	if err := j.size(*row); err != nil {
		return err
	}
	if *listing != "" {
		return j.list(*listing)
	}
	return j.forward()
}

// size picks the layer: a known row on a GPU, a small one on the emulator.
func (j *job) size(row string) error {
	j.config, j.tokens, j.boost = small, smallTokens, 5
	if !j.gpu {
		return nil
	}
	r, ok := spec.FindRow(row)
	if !ok {
		return fmt.Errorf("no row is named %q, -rows lists them", row)
	}
	j.config, j.tokens, j.sonicMS, j.boost = r.Config, r.Tokens, r.SonicForwardMS, 1
	return nil
}

func (j *job) list(kernel string) error {
	l, err := moe.New(j.ctx, j.dev, j.config, moe.WithLogger(j.log), moe.WithCache(j.openCache(j.dir)))
	if err != nil {
		return err
	}
	text, err := l.Listing(kernel)
	if err == nil {
		_, err = j.out.Write(text)
	}
	return err
}

func (j *job) openCache(dir string) *cache.Cache {
	return cache.Open(cache.Options{Dir: dir, Logger: j.log})
}
