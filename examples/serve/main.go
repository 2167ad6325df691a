// Command serve answers HTTP requests with the forward pass of a model's expert layers.
//
//	go run ./examples/serve -model ~/models/Qwen3-30B-A3B -layer 0-3
//	go run ./examples/serve -demo 8      # random weights: look at http://localhost:8080
//	go run ./examples/serve -decode 10s  # no HTTP: decode latency of several layers
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
// Every error is {"error": "…"}. The status is 400 for a wrong body, 413 for too many tokens or
// bytes, 415 for another Content-Type, and 422 for an output that JSON cannot hold. It is 503
// with Retry-After if the service is full or ends.
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
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"sonicmoe/cache"
	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/peers"
	"sonicmoe/moe"
)

var program = command.Program{Name: "serve", Purpose: "answers HTTP requests with the forward pass of a model's expert layers, many requests in one pass.", Drain: 15 * time.Second}

func main() { program.Main(run) }

// emulatedRow is a layer that the emulated device runs in about a tenth of a second.
var emulatedRow = peers.Row{Name: "small", Tokens: 64, Config: moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 16, TopK: 2, TokensHint: 64}}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	set := program.Flags()
	device, dir, sizes := command.DeviceFlag(set), command.CacheFlag(set), command.SizeFlags(set, false)
	listen := set.String("listen", "localhost:8080", "`address` to listen on")
	queue := set.Int("queue", 256, "`requests` that may wait, with the tokens of at most 16 passes; further requests get 503")
	window := set.Duration("window", 2*time.Millisecond, "`time` that the first request of a pass waits for others")
	folder := set.String("model", "", "`folder` of a published model, config.json and safetensors files, in place of random weights")
	number := set.String("layer", "", "with -model: `numbers` of its layers, such as 3 or 0-3,7 (default: the first with experts)")
	demo := set.Int("demo", 0, "`clients` of its own that send requests all the time, to have something to look at")
	length := set.Duration("decode", 0, "instead of HTTP, decode for this `time` and print latencies: layers in sequence, tokens arriving at random")
	layers := set.Int("layers", 0, "with -decode: `layers` in sequence (default: 4, emulated 2)")
	load := set.Float64("load", 0.5, "with -decode: tokens arrive at this `share` of the rate of full steps")
	if err := program.Parse(set, args, stdout); err != nil || sizes.Listed(stdout) {
		return err
	}
	decoded := *length != 0
	rows, err := sizes.Calls()
	if decoded { // a decode step has fewer tokens than a size in the list of rows
		rows, err = sizes.Rows(), nil
	}
	switch {
	case err != nil:
		return err
	case *folder != "" && (decoded || len(rows) > 0):
		return command.Usagef("-model is given with -decode, -row or -shape, want it without them: the model has its own sizes")
	case *folder == "" && *number != "":
		return command.Usagef("-layer %s needs -model", *number)
	case *queue < 1 || *window < 0 || *demo < 0:
		return command.Usagef("-queue %d, -window %v, -demo %d: want at least 1, 0, 0", *queue, *window, *demo)
	case *length < 0 || *layers < 0 || !(*load > 0 && *load <= maxLoad):
		return command.Usagef("-decode %v, -layers %d, -load %v: want at least 0, at least 0, above 0 and at most %v", *length, *layers, *load, maxLoad)
	}
	// The context of the device does not end with ctx, because requests in progress are
	// answered after ctx has ended.
	dev, gpu, err := command.OpenDevice(context.WithoutCancel(ctx), *device, stderr)
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
	if row = sizes.Call(row); decoded {
		return decode(ctx, dev, row, kept, decoding{layers: cmp.Or(*layers, defaultLayers(gpu)), load: *load, length: *length}, stdout)
	}
	offered := []source{randomSource(row.Config)}
	if *folder != "" {
		if offered, err = openModel(ctx, *folder, *number, row.Tokens); err != nil {
			return err
		}
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return errors.Join(err, closeAll(offered))
	}
	fmt.Fprintf(stdout, "%s on %s, up to %d tokens a pass: http://%v\n", offer(offered), dev.Target().Name, row.Tokens, l.Addr())
	for _, remark := range offered[0].remarks {
		fmt.Fprintf(stdout, "%s: %s\n", *folder, remark)
	}
	s := newServer(dev, defaultLimits)
	if !gpu {
		s.limits.pass = time.Hour // the emulated device is slow
	}
	return serve(ctx, l, s, loader(dev, offered, kept, batching{row.Tokens, *queue, *window}), *demo)
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
		row, err = command.Row("Qwen3-30B-A3B")
	case gpu:
		row, err = command.Row("7B n=256")
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
