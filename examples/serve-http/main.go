// Command serve-http answers HTTP requests with a layer's forward pass.
//
//	go run ./examples/serve-http -demo 8      # then look at http://localhost:8080
//	curl -d '{"tokens": [[0.1, …], …]}' http://localhost:8080/forward
//
// The idea: requests come one token or some at a time, and a pass over many
// tokens takes hardly longer than one over few, for either reads all weights. So
// one goroutine owns the device's stream and takes as many waiting requests into
// a pass as fit. What a client gets doesn't depend on who else was in the batch:
// tokens are independent, and results the same bits for every batch.
//
// Two rules keep a service well under load. Who gave up costs nothing: a request
// whose client went away before its pass is dropped. And the queue is bounded:
// when it is full, the answer is 503 at once, not a longer wait for all.
//
// / shows load and latency live, /metrics gives them to Prometheus.
package main

import (
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
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

var program = command.Program{Name: "serve-http", Purpose: "answers HTTP requests with a layer's forward pass, many requests in one pass."}

func main() { program.Main(run) }

// emulatedRow is what the emulated device serves in a tenth of a second.
var emulatedRow = spec.Row{Name: "small", Tokens: 64, Config: moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 16, TopK: 2, TokensHint: 64}}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	set := program.Flags()
	device, dir, sizes := command.DeviceFlag(set), command.CacheFlag(set), command.SizeFlags(set, false)
	listen := set.String("listen", "localhost:8080", "`address` to listen on")
	queue := set.Int("queue", 256, "`requests` that may wait; beyond them the answer is 503")
	window := set.Duration("window", 2*time.Millisecond, "how long the first request of a pass waits for others")
	demo := set.Int("demo", 0, "`clients` of its own that ask without end, to have something to look at")
	if err := program.Parse(set, args, stdout); err != nil || sizes.Listed(stdout) {
		return err
	}
	rows, err := sizes.Calls()
	if err != nil {
		return err
	}
	if *queue < 1 || *window < 0 || *demo < 0 {
		return command.Usagef("-queue %d, -window %v, -demo %d: must be at least 1, not negative, not negative", *queue, *window, *demo)
	}
	// Requests in progress are answered after ctx has ended, so the device outlives it.
	dev, gpu, err := command.OpenDevice(context.WithoutCancel(ctx), *device, stderr)
	if err != nil {
		return err
	}
	defer dev.Close()
	row := emulatedRow
	switch {
	case len(rows) > 0:
		row = rows[0]
	case gpu:
		if row, err = command.Row("7B n=256"); err != nil {
			return err
		}
		row.Tokens = 4096 // of the largest batch
	}
	row = sizes.Call(row)
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	b, err := newBatcher(ctx, dev, row.Config, row.Tokens, *queue, *window, cache.Open(cache.Options{Dir: *dir, Logger: log}))
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return errors.Join(err, b.close())
	}
	fmt.Fprintf(stdout, "%v on %s, up to %d tokens a pass: http://%v\n", row.Config, dev.Target().Name, row.Tokens, l.Addr())
	return serve(ctx, l, b, *demo)
}

// serve answers until ctx ends, then what is in progress.
func serve(ctx context.Context, l net.Listener, b *batcher, demo int) error {
	web := &http.Server{Handler: b.handler(), ReadHeaderTimeout: 10 * time.Second}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(b.work)
	g.Go(func() error {
		if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	for i := range demo {
		g.Go(func() error {
			ask(ctx, "http://"+l.Addr().String()+"/forward", b.width(), uint64(i))
			return nil
		})
	}
	g.Go(func() error {
		<-ctx.Done()
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err := web.Shutdown(late)
		b.stop()
		return err
	})
	return errors.Join(g.Wait(), b.close())
}
