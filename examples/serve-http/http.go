package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"time"
)

//go:embed page.html
var page []byte

// handler answers /forward, /stats, /metrics and /.
func (b *batcher) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /forward", b.forward)
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { reply(w, b.metrics.snapshot(len(b.queue))) })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		b.metrics.write(w, len(b.queue))
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page) // a client that went away
	})
	return mux
}

// tokens are rows of numbers, of a request or an answer.
type tokens struct {
	Tokens [][]float32 `json:"tokens"`
}

// forward answers {"tokens": [[…], …]} with the layer's outputs in the same form.
func (b *batcher) forward(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	status := http.StatusOK
	defer func() { b.metrics.answered(status, time.Since(start)) }()
	refuse := func(code int, text string) {
		status = code
		http.Error(w, text, code)
	}
	d := b.width()
	var in tokens
	// A number has at most some 20 characters.
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, int64(b.most*d)*32+1024)).Decode(&in); err != nil {
		refuse(http.StatusBadRequest, fmt.Sprintf(`want {"tokens": [[%d numbers], …]}, up to %d tokens: %v`, d, b.most, err))
		return
	}
	if n := len(in.Tokens); n < 1 || n > b.most {
		refuse(http.StatusBadRequest, fmt.Sprintf("%d tokens, want 1 to %d", n, b.most))
		return
	}
	var x []float32
	for i, t := range in.Tokens {
		if len(t) != d {
			refuse(http.StatusBadRequest, fmt.Sprintf("token %d has %d numbers, want %d", i, len(t), d))
			return
		}
		x = append(x, t...)
	}
	o, err := b.submit(r.Context(), x)
	switch {
	case errors.Is(err, errBusy), errors.Is(err, errStopped):
		w.Header().Set("Retry-After", "1")
		refuse(http.StatusServiceUnavailable, err.Error())
	case r.Context().Err() != nil:
		status = 499 // as nginx counts a client that went away
	case err != nil:
		refuse(http.StatusInternalServerError, err.Error())
	default:
		for i := range in.Tokens {
			in.Tokens[i] = o[i*d:][:d]
		}
		reply(w, in)
	}
}

// reply writes JSON. Numbers that JSON has no word for are an error of the
// service.
func reply(w http.ResponseWriter, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // a client that went away
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
