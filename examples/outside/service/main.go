// Command service answers HTTP requests with a layer, from a module of its own,
// as yours would be: look at ../go.mod, whose replace line says where sonicmoe
// lies.
//
// The idea: one goroutine owns the device's stream and takes as many waiting
// requests as fit into one pass, for a pass over 64 tokens takes hardly longer
// than one over 1. A Forward only queues kernels; its buffers were made once.
//
//	go run ./service
//
// It asks itself, eight clients at once, and shows that each got the answer
// that a client alone gets, bit by bit.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"

	"sonicmoe/driver/open"
	"sonicmoe/moe"
)

const (
	d    = 128 // width of a token
	most = 64  // tokens of one pass
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "service:", err)
		os.Exit(1)
	}
}

// request is a token on its way through the layer.
type request struct {
	x      []float32
	answer chan<- []float32
}

func run(ctx context.Context) error {
	requests, ready := make(chan request), make(chan error, 1)
	ctx, ended := context.WithCancel(ctx)
	go func() {
		defer ended()
		ready <- serve(ctx, requests)
	}()
	web := httptest.NewServer(handler(ctx, requests))
	defer web.Close()
	asked := make(chan error, 1)
	go func() {
		defer close(requests)
		asked <- ask(web.URL)
	}()
	select {
	case err := <-ready: // before all were answered
		return err
	case err := <-asked:
		return errors.Join(err, <-ready)
	}
}

// serve runs passes over requests until there are no more.
func serve(ctx context.Context, requests <-chan request) error {
	dev, err := open.Device(ctx, "emulated") // or "cuda"
	if err != nil {
		return err
	}
	defer dev.Close()
	layer, err := moe.New(ctx, dev, moe.Config{Hidden: d, Intermediate: 64, NumExperts: 4, TopK: 2}, moe.WithoutBackward())
	if err != nil {
		return err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	memory := moe.NewArena(dev)
	defer memory.Free()
	full := memory.Forward(layer, most)
	full.Weights, full.Workspace = memory.Weights(layer), memory.Workspace(most, layer)
	weights := func(t moe.Tensor, step float32) error {
		values := make([]float32, t.Shape.Elements())
		for i := range values {
			values[i] = step * float32(i*i%17-8)
		}
		return moe.Write(stream, t, values)
	}
	if err := errors.Join(memory.Err(), weights(full.Router, 0.02), weights(full.W1, 0.01), weights(full.W2, 0.01)); err != nil {
		return err
	}
	call := layer.NewCall()
	for first := range requests {
		batch, x := waiting(first, requests)
		f, err := full.Tokens(len(batch))
		o := make([]float32, len(x))
		if err := errors.Join(err, moe.Write(stream, f.X, x), call.Forward(stream, f), moe.Read(stream, f.O, o)); err != nil {
			return err
		}
		for i, r := range batch {
			r.answer <- o[i*d:][:d]
		}
	}
	return nil
}

// waiting gives the first request and those that wait behind it, with their
// tokens in a row.
func waiting(first request, more <-chan request) (batch []request, x []float32) {
	batch, x = []request{first}, slices.Clone(first.x)
	for len(batch) < most {
		select {
		case r, ok := <-more:
			if !ok {
				return batch, x
			}
			batch, x = append(batch, r), append(x, r.x...)
		default:
			return batch, x
		}
	}
	return batch, x
}

// handler answers a JSON array of d numbers with another. Whoever waits when the
// layer ends, by an error of the device say, is told so.
func handler(ctx context.Context, requests chan<- request) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var x []float32
		if err := json.NewDecoder(r.Body).Decode(&x); err != nil || len(x) != d {
			http.Error(w, fmt.Sprintf("want a JSON array of %d numbers", d), http.StatusBadRequest)
			return
		}
		answer := make(chan []float32, 1)
		for to := requests; ; {
			select {
			case to <- request{x, answer}:
				to = nil // it is on its way
			case o := <-answer:
				_ = json.NewEncoder(w).Encode(o) // the client may have gone away
				return
			case <-ctx.Done():
				http.Error(w, "the layer has ended", http.StatusServiceUnavailable)
				return
			case <-r.Context().Done():
				return // the client went away
			}
		}
	})
}

// ask sends eight tokens one after the other, then all at once.
func ask(url string) error {
	const clients = 8
	var alone, together [clients][]float32
	var errs [clients]error
	for i := range clients {
		alone[i], errs[i] = post(url, i)
	}
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			var err error
			together[i], err = post(url, i)
			errs[i] = errors.Join(errs[i], err)
		})
	}
	all.Wait()
	for i := range clients {
		if errs[i] == nil && !slices.Equal(alone[i], together[i]) {
			errs[i] = fmt.Errorf("client %d got another answer beside others than alone", i)
		}
	}
	fmt.Printf("%d clients; the first got %.4f…\n", clients, alone[0][:min(3, len(alone[0]))])
	return errors.Join(errs[:]...)
}

func post(url string, client int) (o []float32, err error) {
	x := make([]float32, d)
	for i := range x {
		x[i] = float32((i+client*client)%11-5) / 4
	}
	body, err := json.Marshal(x)
	if err != nil {
		return nil, err
	}
	resp, err := http.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	return o, json.NewDecoder(resp.Body).Decode(&o)
}
