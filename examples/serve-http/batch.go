package main

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/moe"
)

// Why a request gets no answer.
var (
	errBusy    = errors.New("too many requests wait")
	errStopped = errors.New("the service ends")
)

// request is some tokens on their way through the layer.
type request struct {
	ctx    context.Context
	x      []float32
	answer chan<- answer // has room for one
}

type answer struct {
	o   []float32
	err error
}

// batcher runs passes over as many requests as fit. submit may be called by any
// goroutine; all else of the layer belongs to work.
type batcher struct {
	layer  *moe.Layer
	call   *moe.Call
	stream driver.Stream
	memory *moe.Arena
	full   moe.Forward
	most   int // tokens of a pass
	window time.Duration

	queue   chan request
	stopped context.Context
	stop    context.CancelFunc
	metrics metrics
}

// newBatcher makes a layer with random weights, and its buffers.
func newBatcher(ctx context.Context, dev driver.Device, c moe.Config, most, queue int, window time.Duration, kept *cache.Cache) (*batcher, error) {
	layer, err := moe.New(ctx, dev, c, moe.WithoutBackward(), moe.WithCache(kept))
	if err != nil {
		return nil, err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	b := &batcher{layer: layer, call: layer.NewCall(), stream: stream, memory: moe.NewArena(dev), most: most, window: window,
		queue: make(chan request, queue), metrics: newMetrics(c.NumExperts)}
	b.stopped, b.stop = context.WithCancel(context.Background())
	b.full = b.memory.Forward(layer, most)
	b.full.Weights, b.full.Workspace = b.memory.Weights(layer), b.memory.Workspace(most, layer)
	if err := b.memory.Err(); err != nil {
		return nil, errors.Join(err, b.close())
	}
	for i, w := range []moe.Tensor{b.full.Router, b.full.W1, b.full.W2} {
		random, in := rand.New(rand.NewPCG(1, uint64(i))), w.Shape.Dims[w.Shape.Rank-1]
		values := make([]float32, w.Shape.Elements())
		for j := range values {
			values[j] = float32(random.NormFloat64() / math.Sqrt(float64(in)))
		}
		if err := moe.Write(stream, w, values); err != nil {
			return nil, errors.Join(err, b.close())
		}
	}
	return b, nil
}

// width is the numbers of a token.
func (b *batcher) width() int { return b.layer.Config().Hidden }

// close gives back what the device has of it. work must have ended.
func (b *batcher) close() error { return errors.Join(b.memory.Free(), b.stream.Close()) }

// submit waits for the outputs of some tokens. Errors: errBusy at once, ctx's,
// errStopped, the device's.
func (b *batcher) submit(ctx context.Context, x []float32) ([]float32, error) {
	got := make(chan answer, 1)
	select {
	case b.queue <- request{ctx, x, got}:
	default:
		return nil, errBusy
	}
	select {
	case a := <-got:
		return a.o, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-b.stopped.Done():
		return nil, errStopped
	}
}

// work runs passes until stop.
func (b *batcher) work() error {
	defer b.stop() // after an error too
	var next *request
	for {
		batch, rest := b.gather(next)
		if next = rest; len(batch) == 0 {
			return nil
		}
		o, err := b.pass(batch)
		for _, r := range batch {
			a := answer{err: err}
			if err == nil {
				a.o, o = o[:len(r.x)], o[len(r.x):]
			}
			r.answer <- a
		}
		if err != nil {
			return err
		}
	}
}

// gather waits for a request and then, for a moment, for those that fit into the
// same pass. rest is one that no longer did. No batch means stop.
func (b *batcher) gather(first *request) (batch []request, rest *request) {
	room := b.most * b.width()
	var window <-chan time.Time
	add := func(r request) bool {
		if r.ctx.Err() != nil { // nobody waits any more
			b.metrics.dropped()
			return true
		}
		if len(r.x) > room {
			rest = &r
			return false
		}
		if batch = append(batch, r); window == nil {
			window = time.After(b.window)
		}
		room -= len(r.x)
		return room > 0
	}
	if first != nil && !add(*first) {
		return batch, rest
	}
	for {
		select {
		case r := <-b.queue:
			if !add(r) {
				return batch, rest
			}
		case <-window:
			return batch, rest
		case <-b.stopped.Done():
			return batch, rest
		}
	}
}

// pass runs the layer over the requests' tokens, one after the other.
func (b *batcher) pass(batch []request) ([]float32, error) {
	var x []float32
	for _, r := range batch {
		x = append(x, r.x...)
	}
	tokens := len(x) / b.width()
	f, err := b.full.Tokens(tokens)
	if err != nil {
		return nil, err
	}
	o, ids := slices.Clone(x), make([]int32, tokens*b.layer.Config().TopK)
	if err := errors.Join(moe.Write(b.stream, f.X, x), b.call.Forward(b.stream, f), moe.Read(b.stream, f.O, o), moe.Read(b.stream, f.ExpertIDs, ids)); err != nil {
		return nil, b.layer.Explain(err)
	}
	b.metrics.passed(len(batch), tokens, ids)
	return o, nil
}
