package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/examples/internal/noise"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// This file measures -decode. Several layers of one configuration, random or a model's, run in sequence, again and
// again, over tokens that arrive as a Poisson process. A step runs all waiting tokens, up to
// the largest batch, through all layers. Before the measurement, one graph for each batch size
// is captured. A step is then one launch, which allocates nothing and pads nothing. Attention
// and the other parts of a model are left out.

// decoding holds the flags of -decode.
type decoding struct {
	layers int
	from   []source // the layers of -model, in place of random ones
	load   float64
	length time.Duration
}

// maxLoad is the largest value of -load. Decoding the tokens that arrive within the time of
// -decode may take -load times that time.
const maxLoad = 1000

// decode runs the measurement, and prints latencies, throughput and allocations.
func decode(ctx context.Context, dev driver.Device, row peers.Row, kept *cache.Cache, o decoding, stdout io.Writer) (err error) {
	for _, s := range o.from {
		if s.config != row.Config {
			return fmt.Errorf("layer %d is %v and layer %d is %v, want layers of one Config with -decode", o.from[0].number, row.Config, s.number, s.config)
		}
	}
	m, err := newModel(ctx, dev, row, o, kept)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	var full [5]time.Duration
	for i := range full {
		start := time.Now()
		if err := m.step(ctx, row.Tokens); err != nil {
			return m.layer.Explain(err)
		}
		full[i] = time.Since(start)
	}
	slices.Sort(full[:])
	median := full[len(full)/2]
	fmt.Fprintf(stdout, "%d layers of %s (%v) on %s, steps of up to %d tokens, a full step takes %v\n",
		len(m.passes), row.Name, row.Config, dev.Target().Name, row.Tokens, median.Round(time.Microsecond))
	fmt.Fprintf(stdout, "weights %d bytes, arranged again for small batches %d; first token after %v: kernels %v, weights %v\n",
		m.weights, m.units, m.first.Round(time.Millisecond), m.kernels.Round(time.Millisecond), m.loaded.Round(time.Millisecond))
	if m.remark != "" {
		fmt.Fprintln(stdout, m.remark)
	}
	t := newTraffic(o.load * float64(row.Tokens) / median.Seconds())
	runtime.GC()
	before := measure(dev)
	if err := t.run(ctx, row.Tokens, m.step, o.length); err != nil {
		return m.layer.Explain(err)
	}
	t.report(stdout, before, measure(dev))
	return nil
}

// model holds layers of one configuration, each with weights of its own. For each number of
// tokens it holds a graph of one pass through all layers.
type model struct {
	layer  *moe.Layer
	stream driver.Stream
	memory *moe.Arena
	passes []moe.ForwardArgs // for each layer, a pass over the largest batch
	graphs []driver.Graph
	done   driver.Event
	// weights and units are the bytes of all layers on the device: of their weights, and of packed
	// weights arranged for small batches.
	weights, units int64
	remark         string // reason why the last layer's weights are not arranged, if so
	// kernels and loaded are the times in which kernels were compiled and weights were loaded. first
	// is the time from the beginning to the first token's output.
	kernels, loaded, first time.Duration
}

// newModel creates the layers, and captures their graphs.
func newModel(ctx context.Context, dev driver.Device, row peers.Row, o decoding, kept *cache.Cache) (*model, error) {
	start := time.Now()
	layer, err := moe.New(ctx, dev, row.Config, moe.WithoutBackward(), moe.WithCache(kept))
	if err != nil {
		return nil, err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	m := &model{layer: layer, stream: stream, memory: moe.NewArena(dev), kernels: time.Since(start)}
	call := layer.NewCall()
	if m.done, err = dev.NewEvent(); err == nil {
		err = m.fill(ctx, call, row.Tokens, o)
	}
	m.loaded = time.Since(start) - m.kernels
	if err == nil { // a pass without a graph runs first, because its error names the kernel's line
		err = errors.Join(m.queue(call, 1), layer.Explain(stream.Synchronize(ctx)))
	}
	m.first = time.Since(start)
	for tokens := 1; tokens <= row.Tokens && err == nil; tokens++ {
		if err = stream.BeginCapture(); err == nil {
			queued := m.queue(call, tokens)
			g, end := stream.EndCapture()
			m.graphs, err = append(m.graphs, g), errors.Join(queued, end)
		}
	}
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// fill allocates the tensors of the layers, and fills them with a model's weights or with random
// ones. Tokens are random.
func (m *model) fill(ctx context.Context, call *moe.Call, tokens int, o decoding) error {
	work, random := m.memory.Workspace(tokens, m.layer), noise.New(m.layer.Config().Type)
	if len(o.from) == 0 {
		for i := range o.layers {
			o.from = append(o.from, source{load: func(_ context.Context, s driver.Stream, w moe.Weights) error {
				return errors.Join(random.Fill(s, w.W1, w.W3, w.W2, w.B1, w.B3, w.B2),
					moe.Write(s, w.Router, reference.NewNormal(uint64(2+i), 1).Values(w.Router.Shape.Elements())))
			}})
		}
	}
	for _, from := range o.from {
		f := m.memory.ForwardArgs(m.layer, tokens)
		f.Weights, f.Workspace = m.memory.Weights(m.layer), work
		if err := m.memory.Err(); err != nil {
			return err
		}
		err := errors.Join(from.load(ctx, m.stream, f.Weights), moe.Write(m.stream, f.X, reference.NewNormal(1, 1).Values(f.X.Shape.Elements())))
		if err == nil {
			f.Units, m.remark, err = arrange(m.layer, call, m.stream, m.memory, f.Weights)
		}
		if err != nil {
			return err
		}
		for _, id := range spec.Weights {
			m.weights += f.Weights.Weight(id).Shape.Bytes()
		}
		m.units += f.Units.Bytes
		m.passes = append(m.passes, f)
	}
	return nil
}

// queue queues a pass of all layers over a number of tokens.
func (m *model) queue(call *moe.Call, tokens int) error {
	for _, f := range m.passes {
		f, err := f.Tokens(tokens)
		if err = errors.Join(err, call.Forward(m.stream, f)); err != nil {
			return err
		}
	}
	return nil
}

// step runs all layers over a number of tokens and waits for the result. It polls the event,
// which is faster than a blocking wait and allocates nothing.
func (m *model) step(ctx context.Context, tokens int) error {
	if err := m.graphs[tokens-1].Launch(m.stream); err != nil {
		return err
	}
	if err := m.done.Record(m.stream); err != nil {
		return err
	}
	for {
		if done, err := m.done.Done(); done || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		runtime.Gosched()
	}
}

// close frees the device's memory.
func (m *model) close() error {
	var errs []error
	for _, g := range m.graphs {
		if g != nil {
			errs = append(errs, g.Close())
		}
	}
	if m.done != nil {
		errs = append(errs, m.done.Close())
	}
	return errors.Join(append(errs, m.memory.Free(), m.stream.Close())...)
}

// traffic generates tokens that arrive at random, and records their latencies. Its memory does
// not grow.
type traffic struct {
	rate    float64 // in tokens per second
	random  *rand.Rand
	arrived []time.Duration // arrival times of the waiting tokens, the earliest first
	latency histogram       // latencies of tokens
	steps   histogram
	took    time.Duration
}

// maxArrived is the largest number of waiting tokens. Further arrivals are delayed.
const maxArrived = 1 << 16

func newTraffic(rate float64) *traffic {
	return &traffic{rate: rate, random: rand.New(rand.NewPCG(1, 0)), arrived: make([]time.Duration, 0, maxArrived)}
}

// run lets tokens arrive for the given time. It calls the function step with up to `most` tokens at
// a time, until no token waits.
func (t *traffic) run(ctx context.Context, most int, step func(context.Context, int) error, length time.Duration) error {
	start := time.Now()
	next := t.gap()
	for {
		now := time.Since(start)
		for next <= min(now, length) && len(t.arrived) < maxArrived {
			t.arrived = append(t.arrived, next)
			next += t.gap()
		}
		if len(t.arrived) == 0 {
			if next > length {
				t.took = now
				return nil
			}
			// A timer may be late by more than a step takes, so the last millisecond is polled.
			if wait := next - now; wait > time.Millisecond {
				select {
				case <-time.After(wait - time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			continue
		}
		n := min(len(t.arrived), most)
		if err := step(ctx, n); err != nil {
			return err
		}
		end := time.Since(start)
		for _, at := range t.arrived[:n] {
			t.latency.add(end - at)
		}
		t.steps.add(end - now)
		t.arrived = t.arrived[:copy(t.arrived, t.arrived[n:])]
	}
}

// gap returns the time to the next arrival. It is at most a century, so that the sum of two
// fits a Duration.
func (t *traffic) gap() time.Duration {
	return time.Duration(min(t.random.ExpFloat64()/t.rate*float64(time.Second), math.MaxInt64/3))
}

// usage holds the memory in use in bytes, and the number of allocations so far.
type usage struct {
	heap, device int64
	allocations  uint64
}

// measure returns the present usage of the process and the device.
func measure(dev driver.Device) usage {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	u := usage{heap: int64(s.HeapAlloc), allocations: s.Mallocs}
	if free, total, err := dev.Memory(); err == nil {
		u.device = total - free
	}
	return u
}

// report prints the throughput, latencies and allocations of a run.
func (t *traffic) report(w io.Writer, before, after usage) {
	tokens, steps := float64(t.latency.count), float64(max(1, t.steps.count))
	fmt.Fprintf(w, "%.0f tokens in %v, %.0f/s (%.0f/s arrived), %d steps of %.1f tokens\n",
		tokens, t.took.Round(time.Millisecond), tokens/t.took.Seconds(), t.rate, t.steps.count, tokens/steps)
	for _, h := range []struct {
		name string
		of   *histogram
	}{{"latency of a token", &t.latency}, {"step", &t.steps}} {
		fmt.Fprintf(w, "%-18s p50 %v, p90 %v, p99 %v, longest %v\n", h.name, h.of.at(0.5), h.of.at(0.9), h.of.at(0.99), h.of.longest.Round(time.Microsecond))
	}
	fmt.Fprintf(w, "%.3f allocations a step, heap %+d bytes, device memory %+d bytes\n",
		float64(after.allocations-before.allocations)/steps, after.heap-before.heap, after.device-before.device)
}

// histogram counts durations in bins, from a microsecond to over a minute. Each bin is binWidth
// times as wide as the bin before. The zero value is empty.
type histogram struct {
	bins    [1000]int
	count   int
	longest time.Duration
}

const binWidth = 1.02

func (h *histogram) add(d time.Duration) {
	bin := int(math.Log(float64(max(d, time.Microsecond))/float64(time.Microsecond)) / math.Log(binWidth))
	h.bins[min(bin, len(h.bins)-1)]++
	h.count++
	h.longest = max(h.longest, d)
}

// at returns a duration below which the given share of all durations lies. It is the upper end
// of a bin.
func (h *histogram) at(share float64) time.Duration {
	wanted, seen := int(math.Ceil(share*float64(h.count))), 0
	for bin, n := range h.bins {
		if seen += n; seen >= wanted && n > 0 {
			end := time.Duration(math.Pow(binWidth, float64(bin+1)) * float64(time.Microsecond))
			return min(end, h.longest).Round(time.Microsecond)
		}
	}
	return 0
}
