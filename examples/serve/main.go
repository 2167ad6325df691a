// Command serve answers HTTP requests with the forward pass of a model's expert layers.
//
//	go run ./examples/serve -model ~/models/Qwen3-30B-A3B -layer 0-3
//	go run ./examples/serve -demo 8      # random weights: look at http://localhost:8080
//	go run ./examples/serve -decode 10s  # no HTTP: decode latency of several layers
//	go run ./examples/serve -decode 10s -model ~/models/gpt-oss-20b -layer all  # of a whole model
//
// Requests and answers are JSON or safetensors:
//
//	curl -d '{"tokens": [[0.1, …], …]}' http://localhost:8080/layers/0/forward
//	curl --data-binary @X.safetensors -H 'Content-Type: application/safetensors' \
//	     -o O.safetensors http://localhost:8080/layers/0/forward
//
// A JSON answer has the form of the request. A safetensors request has one tensor x [T, d] for
// T tokens of width d, of type F32 or of the layer's type. The answer has one tensor o of the
// same type and shape. If the service has only one layer, /forward is a short name for it.
//
// Every error is {"error": "…"}. The status is 400 for a wrong body, 408 for a body that takes too
// long to arrive, 413 for too many tokens or bytes, 415 for another Content-Type, and 422 for an
// output that JSON cannot hold. It is 503 with Retry-After if the service is full or ends.
//
// A pass over 64 tokens takes hardly longer than a pass over one token, because both read all
// weights. One goroutine for each layer therefore owns a stream, and combines as many waiting
// requests into a pass as fit. Tokens are independent of each other, so a client gets the same
// bits in every batch.
//
// Four rules keep the service responsive under load:
//
//   - A request is dropped if its client closes the connection before the pass.
//   - The queue is bounded. A request that finds it full gets 503 at once.
//   - No body is larger than the tokens of a pass, and the bytes of all bodies that are
//     read at the same time are bounded. Small bodies of slow clients leave room for others.
//   - Headers, bodies, answers and idle connections have time limits. SIGTERM ends
//     idle and slow connections at once and waits for the requests in progress.
//
// If /healthz fails, restart the process: the device is broken or a pass hangs. If /readyz
// fails, send requests elsewhere: it also fails while the layers are loaded and after SIGTERM.
// /version names build, device and layers. /metrics has the service, the device and Go's
// runtime for Prometheus. The page / shows state, load and latency live.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"sonicmoe/cache"
	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/setup"
	"sonicmoe/internal/peers"
	"sonicmoe/moe"
)

var program = command.Program{Name: "serve", Purpose: "answers HTTP requests with the forward pass of a model's expert layers, many requests in one pass.", Drain: 15 * time.Second}

func main() { program.Main(run) }

// emulatedRow is a layer that the emulated device runs in about a tenth of a second.
var emulatedRow = peers.Row{Name: "small", Tokens: 64, Config: moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 16, TopK: 2, TokensHint: 64}}

// options are the flags of this program alone.
type options struct {
	listen         string
	queue          int
	window         time.Duration
	folder, number string // a published model, and its layers
	demo           int
	length         time.Duration // of -decode
	layers         int
	load           float64
}

func newOptions(set *flag.FlagSet) *options {
	var o options
	set.StringVar(&o.listen, "listen", "localhost:8080", "`address` to listen on")
	set.IntVar(&o.queue, "queue", 256, "`requests` that may wait, with the tokens of at most 16 passes; further requests get 503")
	set.DurationVar(&o.window, "window", 2*time.Millisecond, "`time` that the first request of a pass waits for others")
	set.StringVar(&o.folder, "model", "", "`folder` of a published model, config.json and safetensors files, in place of random weights")
	set.StringVar(&o.number, "layer", "", "with -model: `numbers` of its layers, such as 3 or 0-3,7, or all with experts (default: the first)")
	set.IntVar(&o.demo, "demo", 0, "`clients` of its own that send requests all the time, to have something to look at")
	set.DurationVar(&o.length, "decode", 0, "instead of HTTP, decode for this `time` and print latencies: layers in sequence, tokens arriving at random")
	set.IntVar(&o.layers, "layers", 0, "with -decode: `layers` in sequence (default: 4, emulated 2)")
	set.Float64Var(&o.load, "load", 0.5, "with -decode: tokens arrive at this `share` of the rate of full steps")
	return &o
}

// check refuses wrong values. sized reports whether a flag gives the layer's size.
func (o *options) check(sized bool) error {
	switch {
	case o.folder != "" && (o.layers != 0 || sized):
		return command.Usagef("-model is given with -layers, -row or -shape, want it without them: the model has its own sizes")
	case o.folder == "" && o.number != "":
		return command.Usagef("-layer %s needs -model", o.number)
	case o.queue < 1 || o.window < 0 || o.demo < 0:
		return command.Usagef("-queue %d, -window %v, -demo %d: want at least 1, 0, 0", o.queue, o.window, o.demo)
	case o.length < 0 || o.layers < 0 || !(o.load > 0 && o.load <= maxLoad):
		return command.Usagef("-decode %v, -layers %d, -load %v: want at least 0, at least 0, above 0 and at most %v", o.length, o.layers, o.load, maxLoad)
	}
	return nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	set := program.Flags()
	device, dir, sizes := setup.DeviceFlag(set), setup.CacheFlag(set), setup.SizeFlags(set, false)
	o := newOptions(set)
	if err := program.Parse(set, args, stdout); err != nil || sizes.Listed(stdout) {
		return err
	}
	decoded := o.length != 0
	rows, err := sizes.Calls()
	if decoded { // a decode step has fewer tokens than a size in the list of rows
		rows, err = sizes.Rows(), nil
	}
	if err != nil {
		return err
	}
	if err := o.check(len(rows) > 0); err != nil {
		return err
	}
	// The context of the device does not end with ctx, because requests in progress are
	// answered after ctx has ended.
	dev, gpu, err := setup.OpenDevice(context.WithoutCancel(ctx), *device, stderr)
	if err != nil {
		return err
	}
	defer dev.Close()
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	kept := cache.Open(cache.Options{Dir: *dir, Logger: log})
	row, err := choose(rows, gpu, decoded)
	if err != nil {
		return err
	}
	row = sizes.Call(row)
	offered := []source{randomSource(row.Config)}
	if o.folder != "" {
		if offered, err = openModel(ctx, o.folder, o.number, row.Tokens); err != nil {
			return err
		}
	}
	if decoded {
		of := decoding{layers: cmp.Or(o.layers, defaultLayers(gpu)), load: o.load, length: o.length}
		if o.folder != "" {
			row.Name, row.Config, of.from = offered[0].model, offered[0].config, offered
		}
		return errors.Join(decode(ctx, dev, row, kept, of, stdout), closeAll(offered))
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return errors.Join(err, closeAll(offered))
	}
	fmt.Fprintf(stdout, "%s on %s, up to %d tokens a pass: http://%v\n", offer(offered), dev.Target().Name, row.Tokens, l.Addr())
	for _, remark := range offered[0].remarks {
		fmt.Fprintf(stdout, "%s: %s\n", o.folder, remark)
	}
	s := newServer(dev, defaultLimits)
	if !gpu {
		s.limits.pass = time.Hour // the emulated device is slow
	}
	return serve(ctx, l, s, loader(dev, offered, kept, batching{row.Tokens, o.queue, o.window}), o.demo)
}

// offer returns a text that describes the layers of the service.
func offer(list []source) string {
	var numbers []string
	for _, s := range list {
		numbers = append(numbers, strconv.Itoa(s.number))
	}
	if list[0].model == "" {
		return fmt.Sprintf("random weights, %v", list[0].config)
	}
	return fmt.Sprintf("%s, layer %s, %v", list[0].model, strings.Join(numbers, ", "), list[0].config)
}

// choose returns the layer that the flags name, or the default layer of the device. The layer's
// number of tokens is the largest batch.
func choose(rows []peers.Row, gpu, decoded bool) (row peers.Row, err error) {
	row = emulatedRow
	switch {
	case len(rows) > 0:
		row = rows[0]
	case gpu && decoded:
		row, err = setup.Row("Qwen3-30B-A3B")
	case gpu:
		row, err = setup.Row("7B n=256")
		row.Tokens = 4096
	}
	if decoded {
		if row.Tokens = 4; gpu {
			row.Tokens = 64
		}
		row.Config.TokensHint = row.Tokens
	}
	return row, err
}

// defaultLayers returns the number of layers of -decode if -layers is not given.
func defaultLayers(gpu bool) int {
	if gpu {
		return 4
	}
	return 2
}
