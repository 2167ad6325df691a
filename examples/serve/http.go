package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"sonicmoe/driver"
)

//go:embed page.html
var page []byte

// limits bounds the time and memory that clients can use.
type limits struct {
	// header, body, answer and idle are the longest times that a client may take to send
	// headers, to send a body, to receive an answer (counted from the headers), and between two
	// requests.
	header, body, answer, idle time.Duration
	// drain is the longest time from the stop signal to the end of the process. During
	// drainBody, its first part, bodies may still arrive.
	drain, drainBody time.Duration
	// pass is the time after which a running pass counts as hung. /healthz then fails.
	pass time.Duration
}

var defaultLimits = limits{
	header: 10 * time.Second, body: 10 * time.Second, answer: time.Minute, idle: 30 * time.Second,
	drain: 10 * time.Second, drainBody: 500 * time.Millisecond, pass: 30 * time.Second,
}

// server answers HTTP requests through the batchers of its layers.
type server struct {
	dev      driver.Device
	limits   limits
	layers   atomic.Pointer[[]*batcher] // nil until they are loaded
	inside   atomic.Int64               // number of requests in handlers
	draining context.Context
	drain    context.CancelFunc
}

func newServer(dev driver.Device, l limits) *server {
	s := &server{dev: dev, limits: l}
	s.draining, s.drain = context.WithCancel(context.Background())
	return s
}

// loaded returns the layers, or none if they are not loaded yet.
func (s *server) loaded() []*batcher {
	if list := s.layers.Load(); list != nil {
		return *list
	}
	return nil
}

// handler returns the handler of all requests. Every error is JSON.
func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	for _, route := range []struct {
		method, path string
		answer       http.HandlerFunc
	}{
		{http.MethodPost, "/forward", s.answerForward},
		{http.MethodPost, "/layers/{layer}/forward", s.answerForward},
		{http.MethodGet, "/healthz", s.probe(s.unhealthy)},
		{http.MethodGet, "/readyz", s.probe(s.unready)},
		{http.MethodGet, "/version", func(w http.ResponseWriter, _ *http.Request) { answerJSON(w, s.about()) }},
		{http.MethodGet, "/stats", func(w http.ResponseWriter, _ *http.Request) { answerJSON(w, s.overview()) }},
		{http.MethodGet, "/metrics", metricsHandler(s).ServeHTTP},
		{http.MethodGet, "/{$}", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = w.Write(page) // the client may have closed its connection
		}},
	} {
		mux.HandleFunc(route.path, func(w http.ResponseWriter, r *http.Request) {
			if r.Method != route.method && (r.Method != http.MethodHead || route.method != http.MethodGet) {
				w.Header().Set("Allow", route.method)
				refuse(w, http.StatusMethodNotAllowed, fmt.Sprintf("method %s, want %s", r.Method, route.method))
				return
			}
			route.answer(w, r)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, fmt.Sprintf("no %s here; want /forward, /layers/N/forward, /healthz, /readyz, /version, /stats, /metrics or /", r.URL.Path))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.inside.Add(1)
		defer s.inside.Add(-1)
		mux.ServeHTTP(w, r)
	})
}

// answerForward answers a request for a layer's outputs.
func (s *server) answerForward(w http.ResponseWriter, r *http.Request) {
	b, wrong := s.choose(r.PathValue("layer"))
	if wrong != nil {
		if wrong.status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "1")
		}
		refuse(w, wrong.status, wrong.text)
		return
	}
	start := time.Now()
	b.stats.answered(s.forward(b, w, r), time.Since(start))
}

// choose returns the layer with a number. If number is "", it returns the layer if there is
// only one.
func (s *server) choose(number string) (*batcher, *refusal) {
	list := s.loaded()
	if list == nil {
		return nil, &refusal{http.StatusServiceUnavailable, s.unready().Error()}
	}
	if number == "" && len(list) == 1 {
		return list[0], nil
	}
	var numbers []int
	for _, b := range list {
		if strconv.Itoa(b.from.number) == number {
			return b, nil
		}
		numbers = append(numbers, b.from.number)
	}
	return nil, &refusal{http.StatusNotFound, fmt.Sprintf("want /layers/N/forward with N one of the layers %v", numbers)}
}

// probe returns a handler that calls the function wrong. It answers 503 with the error that wrong
// returns, or 200 and "ok" if there is none.
func (s *server) probe(wrong func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := wrong(); err != nil {
			refuse(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		answerJSON(w, map[string]string{"status": "ok"})
	}
}

// unhealthy returns the reason to restart the process, or nil.
func (s *server) unhealthy() error {
	if err := s.dev.Err(); err != nil {
		return err
	}
	for _, b := range s.loaded() {
		if took := b.stuck(); took > s.limits.pass {
			return fmt.Errorf("a pass of layer %d has run for %v", b.from.number, took.Round(time.Millisecond))
		}
	}
	return nil
}

// unready returns the reason to send requests to another process, or nil.
func (s *server) unready() error {
	if err := s.unhealthy(); err != nil {
		return err
	}
	if s.draining.Err() != nil {
		return errStopped
	}
	if s.loaded() == nil {
		return errors.New("the layers are being loaded")
	}
	return nil
}

func answerJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", typeJSON)
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(v) // the client may have closed its connection
}

// serve loads the layers and answers requests until ctx ends. It then waits for the requests in
// progress.
func serve(ctx context.Context, l net.Listener, s *server, load func(context.Context) ([]*batcher, error), demo int) error {
	web := &http.Server{Handler: s.handler(), ReadHeaderTimeout: s.limits.header, IdleTimeout: s.limits.idle, WriteTimeout: s.limits.answer}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	drained := make(chan struct{})
	g.Go(func() error {
		list, err := load(ctx)
		if err != nil {
			if errors.Is(err, context.Canceled) && ctx.Err() != nil {
				return nil // the stop signal came before the layers were loaded
			}
			return err
		}
		s.layers.Store(&list)
		for _, b := range list {
			g.Go(b.work)
			g.Go(func() error {
				<-drained
				b.stop()
				return nil
			})
		}
		for i := range demo {
			b := list[i%len(list)]
			g.Go(func() error {
				ask(ctx, fmt.Sprintf("http://%v/layers/%d/forward", l.Addr(), b.from.number), b.width(), uint64(i))
				return nil
			})
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		defer close(drained)
		return s.shutdown(web)
	})
	return errors.Join(g.Wait(), closeBatchers(s.loaded()))
}

// shutdown waits for the requests in progress, but no longer than the limit. It closes idle
// connections at once, and also connections that never sent a request.
func (s *server) shutdown(web *http.Server) error {
	s.drain()
	late, cancel := context.WithTimeout(context.Background(), s.limits.drain)
	defer cancel()
	defer web.Close()
	done := make(chan error, 1)
	go func() { done <- web.Shutdown(late) }()
	// After a handler has returned, the last buffer must still be sent.
	const pause, pauses = 10 * time.Millisecond, 10
	for quiet := 0; quiet < pauses; {
		select {
		case <-done:
			if n := s.inside.Load(); n > 0 {
				return fmt.Errorf("%d requests were still in progress after %v", n, s.limits.drain)
			}
			return nil
		case <-time.After(pause):
		}
		if quiet++; s.inside.Load() > 0 {
			quiet = 0
		}
	}
	return nil
}
