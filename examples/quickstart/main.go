// Command quickstart runs the forward pass of one MoE layer and prints its error, memory and
// speed. On a GPU it runs the layer "7B n=256" in full size. Without a GPU it runs a small
// layer on the emulated device.
//
//	go run ./examples/quickstart                   # a GPU, else the emulator
//	go run ./examples/quickstart -device emulated
//	go run ./examples/quickstart -row "30B n=1024" # another known size
//	go run ./examples/quickstart -shape 1536,256,128,8 -tokens 64
//	go run ./examples/quickstart -listing up       # PTX with its Go lines
//	go run ./examples/quickstart -listing up -launch up.json   # and its launch, for examples/emulate
package main

import (
	"context"
	"io"
	"log/slog"
	"time"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/setup"
	"sonicmoe/internal/peers"
	"sonicmoe/moe"
)

// started is the start time of the process, as nearly as Go code can know it.
var started = time.Now()

var program = command.Program{Name: "quickstart", Purpose: "runs one MoE layer's forward pass and prints its error, its memory, and on a GPU its speed."}

func main() { program.Main(run) }

// small is the default layer of the emulated device.
var small = peers.Row{Name: "small", Tokens: 192, Config: moe.Config{Hidden: 256, Intermediate: 128, NumExperts: 8, TopK: 2}}

type job struct {
	ctx   context.Context
	out   io.Writer
	dev   driver.Device
	row   peers.Row
	boost float64 // factor of the weights that makes the outputs of a small layer of order 1
	log   *slog.Logger
	dir   string
	gpu   bool
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := program.Flags()
	device, dir, sizes := setup.DeviceFlag(flags), setup.CacheFlag(flags), setup.SizeFlags(flags, false)
	listing := flags.String("listing", "", "print the PTX of this `kernel` with the Go line of each instruction: router, count, plan, up, up-inference, down, aggregate, or another kernel of the layer")
	launch := flags.String("launch", "", "with -listing: write the kernel's PTX, memory and launch for the command emulate, to `FILE`.json and files next to it; the device is the emulated one")
	if err := program.Parse(flags, args, stdout); err != nil || sizes.Listed(stdout) {
		return err
	}
	rows, err := sizes.Calls()
	if err != nil {
		return err
	}
	j := job{ctx: ctx, out: stdout, dir: *dir, log: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	if *launch != "" {
		if *listing == "" || *device != "" && *device != setup.Emulated {
			return command.Usagef("-launch %s needs -listing and the emulated device", *launch)
		}
		*device = setup.Emulated
	}
	if j.dev, j.gpu, err = setup.OpenDevice(ctx, *device, stderr); err != nil {
		return err
	}
	defer j.dev.Close()
	if err := j.size(rows, sizes.Tokens()); err != nil {
		return err
	}
	if *launch != "" {
		return j.record(*listing, *launch)
	}
	if *listing != "" {
		return j.list(*listing)
	}
	return j.forward()
}

// size sets the layer to run: the layer that the flags name, or a known row on a GPU and a
// small layer on the emulated device.
func (j *job) size(asked []peers.Row, tokens int) (err error) {
	j.row, j.boost = small, 5
	switch {
	case len(asked) > 0:
		j.row, j.boost = asked[0], 1
		return nil
	case j.gpu:
		j.boost = 1
		j.row, err = setup.Row("7B n=256")
	}
	if tokens > 0 {
		j.row.Tokens = tokens
	}
	return err
}

// emulatedFLOPs is the number of operations that the emulated device does in some seconds.
const emulatedFLOPs = 2 * setup.EmulatedFLOPs

// tooLong reports whether a pass would take minutes on the emulated device.
func (j *job) tooLong() bool {
	return !j.gpu && j.row.Config.ForwardFLOPs(j.row.Tokens) > emulatedFLOPs
}

func (j *job) list(kernel string) error {
	l, err := moe.New(j.ctx, j.dev, j.row.Config, moe.WithLogger(j.log), moe.WithCache(j.openCache(j.dir)))
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
