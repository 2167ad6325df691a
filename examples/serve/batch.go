package main

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"sonicmoe/driver"
	"sonicmoe/moe"
)

// These are errors of requests that no pass has served.
var (
	errBusy    = errors.New("too many requests are waiting")
	errStopped = errors.New("the service is ending")
)

// request holds a client's tokens on their way through the layer.
type request struct {
	ctx    context.Context
	x      []float32
	answer chan<- answer // has a buffer for the one answer
}

type answer struct {
	o   []float32
	err error
}

// batching says how a batcher combines requests into passes.
type batching struct {
	most   int           // largest number of tokens in a pass
	queue  int           // largest number of requests that may wait
	window time.Duration // how long the first request of a pass waits for others
}

// batcher runs passes over as many waiting requests as fit. Any goroutine may call submit.
// Everything else of the layer belongs to the goroutine that runs work.
type batcher struct {
	from source
	batching
	layer  *moe.Layer
	call   *moe.Call
	stream driver.Stream
	memory *moe.Arena
	args   moe.ForwardArgs // arguments of a pass over the largest batch

	// reading limits the bytes of request bodies that are read at the same time.
	reading  *semaphore.Weighted
	waitlist chan request
	waiting  atomic.Int64 // elements (tokens times width) in the queue
	begun    atomic.Int64 // when the present pass began, in Unix nanoseconds, or 0 between passes
	stopped  context.Context
	stop     context.CancelFunc
	stats    stats
}

// newBatcher allocates the buffers of a layer and loads the layer's weights.
func newBatcher(ctx context.Context, dev driver.Device, layer *moe.Layer, s source, o batching) (*batcher, error) {
	stream, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	b := &batcher{from: s, batching: o, layer: layer, call: layer.NewCall(), stream: stream, memory: moe.NewArena(dev),
		waitlist: make(chan request, o.queue), stats: newStats(layer.Config().NumExperts)}
	b.reading = semaphore.NewWeighted(maxBodies * b.maxBody(typeJSON))
	b.stopped, b.stop = context.WithCancel(context.Background())
	b.args = b.memory.ForwardArgs(layer, o.most)
	b.args.Weights, b.args.Workspace = b.memory.Weights(layer), b.memory.Workspace(o.most, layer)
	if err = b.memory.Err(); err == nil {
		err = s.load(ctx, stream, b.args.Weights)
	}
	if err == nil {
		err = b.arrange()
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// arrange arranges packed weights for small batches. If that is not possible, /version says so.
func (b *batcher) arrange() (err error) {
	var remark string
	if b.args.Units, remark, err = arrange(b.layer, b.call, b.stream, b.memory, b.args.Weights); remark != "" {
		b.from.remarks = append(slices.Clip(b.from.remarks), remark)
	}
	return err
}

// width returns the number of elements of a token.
func (b *batcher) width() int { return b.layer.Config().Hidden }

// full reports whether the queue of waiting requests is full.
func (b *batcher) full() bool { return len(b.waitlist) == cap(b.waitlist) }

// stuck returns how long the present pass has been running, or 0 between passes.
func (b *batcher) stuck() time.Duration {
	if begun := b.begun.Load(); begun != 0 {
		return time.Since(time.Unix(0, begun))
	}
	return 0
}

// close frees the device's memory. work must have ended before.
func (b *batcher) close() error {
	b.stop()
	return errors.Join(b.memory.Free(), b.stream.Close())
}

// maxBodies is the number of request bodies of full size that may be read at the same time.
const maxBodies = 8

// maxWaiting is the number of full passes whose tokens may wait in the queue.
const maxWaiting = 16

// submit runs a request's tokens through the layer and returns their outputs. If the queue is full,
// it returns errBusy at once. After stop it returns errStopped. Any other error is the error of ctx
// or of the device.
func (b *batcher) submit(ctx context.Context, x []float32) ([]float32, error) {
	got, n := make(chan answer, 1), int64(len(x))
	if b.waiting.Add(n) > int64(maxWaiting*b.most*b.width()) {
		b.waiting.Add(-n)
		return nil, errBusy
	}
	select {
	case b.waitlist <- request{ctx, x, got}:
	default:
		b.waiting.Add(-n)
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

// work runs passes until stop is called.
func (b *batcher) work() error {
	defer b.stop() // so that an error stops the batcher, too
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

// gather waits for a request, and then for the time window for more requests that fit into the
// same pass. rest is a request that no longer fits. If batch is empty, the batcher was stopped.
func (b *batcher) gather(first *request) (batch []request, rest *request) {
	room := b.most * b.width()
	var window <-chan time.Time
	add := func(r request) bool {
		if r.ctx.Err() != nil { // the client has closed its connection
			b.stats.drop()
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
		case r := <-b.waitlist:
			b.waiting.Add(-int64(len(r.x)))
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

// pass runs the layer over all tokens of a batch. The outputs are in the order of the requests.
func (b *batcher) pass(batch []request) ([]float32, error) {
	var x []float32
	for _, r := range batch {
		x = append(x, r.x...)
	}
	b.begun.Store(time.Now().UnixNano())
	defer b.begun.Store(0)
	tokens := len(x) / b.width()
	f, err := b.args.Tokens(tokens)
	if err != nil {
		return nil, err
	}
	o, ids := slices.Clone(x), make([]int32, tokens*b.layer.Config().TopK)
	if err := errors.Join(moe.Write(b.stream, f.X, x), b.call.Forward(b.stream, f), moe.Read(b.stream, f.O, o), moe.Read(b.stream, f.ExpertIDs, ids)); err != nil {
		return nil, b.layer.Explain(err)
	}
	b.stats.passed(len(batch), tokens, ids)
	return o, nil
}
