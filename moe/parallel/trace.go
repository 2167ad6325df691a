package parallel

import (
	"context"
	"slices"
	"time"

	"sonicmoe/driver"
)

// Span is a part of a pass on one stream of the device, in device time from the pass's first span.
type Span struct {
	// Name is the Phase of an exchange. Other work is "route", "pack", "arrange", "own experts", "experts", "partial
	// sums" or "sum". In a backward pass it can also be "shared experts", "losses", "own dH", "dH", "dX", "dW2,
	// dW1", "router" or "biases". A span can contain exchanges, which then have spans of their own. No two spans of
	// a pass have the same Name and Chunk.
	Name string
	// Chunk is the number of the chunk, or of the group of ranks whose tokens arrive.
	Chunk int
	// Side reports whether the span is on the stream of exchanges.
	Side bool
	// Moves reports whether the span is an exchange between ranks. It includes the wait for ranks
	// that are late.
	Moves    bool
	From, To time.Duration
}

// trace has the events of a pass. begin[i] and end[i] belong to spans[i].
type trace struct {
	on         bool
	spans      []Span
	begin, end []driver.Event
}

// Trace makes the following passes measure their spans, or not.
func (r *Rank) Trace(on bool) { r.trace.on = on }

// Spans waits for the last pass on a stream, and returns its spans in the order in which they were
// queued.
func (r *Rank) Spans(ctx context.Context, s driver.Stream) ([]Span, error) {
	if err := r.Wait(ctx, s); err != nil {
		return nil, err
	}
	t := &r.trace
	list := slices.Clone(t.spans)
	for i := range list {
		for _, of := range []struct {
			to   *time.Duration
			mark driver.Event
		}{{&list[i].From, t.begin[i]}, {&list[i].To, t.end[i]}} {
			var err error
			if *of.to, err = of.mark.Since(t.begin[0]); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// span queues work on a stream as a span of the pass.
func (r *Rank) span(of Span, s driver.Stream, work func() error) error {
	t := &r.trace
	if !t.on {
		return work()
	}
	n := len(t.spans)
	t.spans = append(t.spans, of)
	for _, list := range []*[]driver.Event{&t.begin, &t.end} {
		if len(*list) == n {
			e, err := r.dev.NewEvent()
			if err != nil {
				return err
			}
			*list = append(*list, e)
		}
	}
	if err := t.begin[n].Record(s); err != nil {
		return err
	}
	if err := work(); err != nil {
		return err
	}
	return t.end[n].Record(s)
}

// move runs exchanges as a span of the pass.
func (p *pass) move(at Step, s driver.Stream, list ...Exchange) error {
	of := Span{Name: at.Phase, Chunk: at.Chunk, Side: s == p.side, Moves: true}
	return p.span(of, s, func() error { return p.transport.Move(p.ctx, at, s, list...) })
}

// close closes the events.
func (t *trace) close() (err error) {
	for _, e := range append(t.begin, t.end...) {
		if closed := e.Close(); err == nil {
			err = closed
		}
	}
	return err
}
