// Command serve answers HTTP requests with a layer's forward pass.
//
//	go run ./examples/serve -demo 8      # then look at http://localhost:8080
//	curl -d '{"tokens": [[0.1, …], …]}' http://localhost:8080/forward
//	go run ./examples/serve -decode 10s  # no HTTP: decode latency of several layers
//
// A pass over 64 tokens takes hardly longer than a pass over one token, because
// both read all weights. One goroutine therefore owns the device's stream and puts
// as many waiting requests into a pass as fit. A client gets the same bits in every
// batch, because tokens are independent of each other.
//
// The service stays responsive under load by four rules:
//
//   - A request whose client has gone away before its pass is dropped.
//   - The queue is bounded. A request that finds it full gets 503 at once.
//   - A few bodies are read at a time, each token by token up to the tokens of a
//     pass, so that no body takes more memory than a pass.
//   - Headers, bodies, answers and idle connections have time limits. SIGTERM ends
//     idle and slow connections at once and waits for the requests in progress.
//
// / shows load and latency live, /metrics reports them to Prometheus.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"sonicmoe/cache"
	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/peers"
	"sonicmoe/moe"
)

var program = command.Program{Name: "serve", Purpose: "answers HTTP requests with a layer's forward pass, many requests in one pass.", Drain: 15 * time.Second}

func main() { program.Main(run) }

// emulatedRow is a layer that the emulated device runs in a tenth of a second.
var emulatedRow = peers.Row{Name: "small", Tokens: 64, Config: moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 16, TopK: 2, TokensHint: 64}}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	set := program.Flags()
	device, dir, sizes := command.DeviceFlag(set), command.CacheFlag(set), command.SizeFlags(set, false)
	listen := set.String("listen", "localhost:8080", "`address` to listen on")
	queue := set.Int("queue", 256, "`requests` that may wait, with the tokens of at most 16 passes; further requests get 503")
	window := set.Duration("window", 2*time.Millisecond, "`time` that the first request of a pass waits for others")
	demo := set.Int("demo", 0, "`clients` of its own that send requests all the time, to have something to look at")
	length := set.Duration("decode", 0, "instead of HTTP, decode for this `time` and print latencies: layers in sequence, tokens arriving at random")
	layers := set.Int("layers", 0, "with -decode: `layers` in sequence (default: 4, emulated 2)")
	load := set.Float64("load", 0.5, "with -decode: tokens arrive at this `share` of the rate of full steps")
	if err := program.Parse(set, args, stdout); err != nil || sizes.Listed(stdout) {
		return err
	}
	decoded := *length != 0
	rows, err := sizes.Calls()
	if decoded { // a decode step has fewer tokens than a named size
		rows, err = sizes.Rows(), nil
	}
	switch {
	case err != nil:
		return err
	case *queue < 1 || *window < 0 || *demo < 0:
		return command.Usagef("-queue %d, -window %v, -demo %d: want at least 1, 0, 0", *queue, *window, *demo)
	case *length < 0 || *layers < 0 || !(*load > 0 && *load <= maxLoad):
		return command.Usagef("-decode %v, -layers %d, -load %v: want at least 0, at least 0, above 0 and at most %v", *length, *layers, *load, maxLoad)
	}
	// Requests in progress are answered after ctx has ended, so the device outlives it.
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
	b, err := newBatcher(ctx, dev, row.Config, row.Tokens, *queue, *window, kept)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return errors.Join(err, b.close())
	}
	fmt.Fprintf(stdout, "%v on %s, up to %d tokens a pass: http://%v\n", row.Config, dev.Target().Name, row.Tokens, l.Addr())
	return serve(ctx, l, newServer(b, defaultLimits), *demo)
}

// choose returns the layer that the command line names, else the device's default. The
// layer's number of tokens is the largest batch.
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

// defaultLayers returns the layers of -decode without -layers.
func defaultLayers(gpu bool) int {
	if gpu {
		return 4
	}
	return 2
}

// serve answers requests until ctx ends, then waits for those in progress.
func serve(ctx context.Context, l net.Listener, s *server, demo int) error {
	web := &http.Server{Handler: s.handler(), ReadHeaderTimeout: s.limits.header, IdleTimeout: s.limits.idle, WriteTimeout: s.limits.answer}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(s.work)
	g.Go(func() error {
		if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	for i := range demo {
		g.Go(func() error {
			ask(ctx, "http://"+l.Addr().String()+"/forward", s.width(), uint64(i))
			return nil
		})
	}
	g.Go(func() error {
		<-ctx.Done()
		defer s.stop()
		return s.shutdown(web)
	})
	return errors.Join(g.Wait(), s.close())
}
