package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"time"
)

//go:embed page.html
var page []byte

// limits bound what clients take of the service.
type limits struct {
	bodies int // number of bodies that are read at a time
	// header, body, answer and idle are the longest times that a client may take to
	// send headers, to send a body, to receive an answer (from the headers on), and
	// between two requests.
	header, body, answer, idle time.Duration
	// drain is the longest time from the stop signal to the end. drainBody is the part of
	// it in which bodies may still arrive.
	drain, drainBody time.Duration
}

var defaultLimits = limits{
	bodies: 8, header: 10 * time.Second, body: 10 * time.Second, answer: time.Minute, idle: 30 * time.Second,
	drain: 10 * time.Second, drainBody: 500 * time.Millisecond,
}

// server answers HTTP requests through a batcher.
type server struct {
	*batcher
	limits   limits
	bodies   chan struct{} // one slot for each body that may be read at a time
	inside   atomic.Int64  // requests in handlers
	draining context.Context
	drain    context.CancelFunc
}

func newServer(b *batcher, l limits) *server {
	s := &server{batcher: b, limits: l, bodies: make(chan struct{}, l.bodies)}
	s.draining, s.drain = context.WithCancel(context.Background())
	return s
}

// handler answers /forward, /stats, /metrics and /.
func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /forward", func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		s.metrics.answered(s.forward(w, r), time.Since(start))
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.metrics.snapshot(len(s.queue))) // the client may have gone away
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		s.metrics.write(w, len(s.queue))
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page) // the client may have gone away
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.inside.Add(1)
		defer s.inside.Add(-1)
		mux.ServeHTTP(w, r)
	})
}

// clientGone is the HTTP status that nginx logs for a client that went away.
const clientGone = 499

// refusal is an error whose cause is the request, with its HTTP status.
type refusal struct {
	status int
	text   string
}

func (e *refusal) Error() string { return e.text }

// forward answers {"tokens": [[…], …]} with the layer's outputs in the same form,
// and returns the status.
func (s *server) forward(w http.ResponseWriter, r *http.Request) int {
	x, err := s.body(w, r)
	var o []float32
	if err == nil {
		o, err = s.submit(r.Context(), x)
	}
	if i := slices.IndexFunc(o, func(v float32) bool { return v-v != 0 }); i >= 0 {
		err = &refusal{http.StatusUnprocessableEntity, fmt.Sprintf("output %d of token %d is %v, which JSON does not have: the token's values are too large", i%s.width(), i/s.width(), o[i])}
	}
	if err == nil {
		s.write(w, o)
		return http.StatusOK
	}
	status := http.StatusInternalServerError
	var wrong *refusal
	switch {
	case errors.Is(err, errBusy), errors.Is(err, errStopped):
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	case errors.As(err, &wrong):
		status = wrong.status
	case r.Context().Err() != nil:
		return clientGone
	}
	http.Error(w, err.Error(), status)
	return status
}

// body reads a request's tokens. It waits for one of the few slots first, so that
// the bodies in memory are bounded.
func (s *server) body(w http.ResponseWriter, r *http.Request) ([]float32, error) {
	late := time.NewTimer(s.limits.body)
	defer late.Stop()
	select {
	case s.bodies <- struct{}{}:
		defer func() { <-s.bodies }()
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case <-s.draining.Done():
		return nil, errStopped
	case <-late.C:
		return nil, errBusy
	}
	connection := http.NewResponseController(w)
	until := func(limit time.Duration) { _ = connection.SetReadDeadline(time.Now().Add(limit)) } // no error: TCP connections have deadlines
	until(s.limits.body)
	stop := context.AfterFunc(s.draining, func() { until(s.limits.drainBody) })
	defer stop()
	// A number in JSON has at most about 25 characters.
	text := http.MaxBytesReader(w, r.Body, int64(s.most*s.width())*32+1024)
	x, err := readTokens(text, s.width(), s.most)
	switch {
	case err == nil:
		stop()
		_ = connection.SetReadDeadline(time.Time{}) // without a deadline from here on: one that passes would end the context as if the client were gone
		return x, nil
	case s.draining.Err() != nil:
		return nil, errStopped
	case isTimeout(err): // the time-out of the connection also ends the request's context
		return nil, &refusal{http.StatusRequestTimeout, fmt.Sprintf("the body took longer than %v", s.limits.body)}
	case r.Context().Err() != nil:
		return nil, r.Context().Err()
	}
	return nil, &refusal{http.StatusBadRequest, fmt.Sprintf(`want {"tokens": [[%d numbers], …]}, up to %d tokens: %v`, s.width(), s.most, err)}
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// write writes an answer, token by token.
func (s *server) write(w http.ResponseWriter, o []float32) {
	w.Header().Set("Content-Type", "application/json")
	before := `{"tokens":[`
	for token := range slices.Chunk(o, s.width()) {
		text, err := json.Marshal(token)
		if err != nil {
			panic(err) // cannot happen, because all numbers are finite
		}
		if _, err := fmt.Fprintf(w, "%s%s", before, text); err != nil {
			return // the client went away
		}
		before = ","
	}
	_, _ = io.WriteString(w, "]}")
}

// shutdown waits for the requests in progress, at most as long as the limit. It closes
// idle connections at once, and also connections that never sent a request.
func (s *server) shutdown(web *http.Server) error {
	s.drain()
	late, cancel := context.WithTimeout(context.Background(), s.limits.drain)
	defer cancel()
	defer web.Close()
	done := make(chan error, 1)
	go func() { done <- web.Shutdown(late) }()
	// After a handler returns, the last buffer still has to be sent.
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

// tokens is the JSON of a request and of an answer: rows of numbers.
type tokens struct {
	Tokens [][]float32 `json:"tokens"`
}

// ask is a client that sends some tokens again and again until ctx ends.
func ask(ctx context.Context, url string, width int, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 3))
	for ctx.Err() == nil {
		in := tokens{make([][]float32, 1+random.IntN(4))}
		for i := range in.Tokens {
			for range width {
				in.Tokens[i] = append(in.Tokens[i], float32(random.NormFloat64()*math.Exp(random.NormFloat64()/4)))
			}
		}
		body, err := json.Marshal(in)
		if err != nil {
			return
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			return
		}
		if resp, err := http.DefaultClient.Do(r); err == nil {
			resp.Body.Close()
		}
		select {
		case <-time.After(time.Duration(random.ExpFloat64() * 2e7)):
		case <-ctx.Done():
		}
	}
}
