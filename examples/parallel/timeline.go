package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sonicmoe/driver"
	"sonicmoe/moe/parallel"
)

// width is the number of columns of a timeline's bars.
const width = 60

// timelines runs each pass once more with its spans measured, and returns their timelines.
func (m *member) timelines(ctx context.Context, s driver.Stream) (string, error) {
	m.Trace(true)
	defer m.Trace(false)
	var b strings.Builder
	for _, pass := range []struct {
		name string
		run  func() error
	}{
		{"forward", func() error { return m.Forward(ctx, s, m.args) }},
		{"backward", func() error { return m.Backward(ctx, s, m.back) }},
	} {
		if err := pass.run(); err != nil {
			return "", err
		}
		spans, err := m.Spans(ctx, s)
		if err != nil {
			return "", err
		}
		draw(&b, fmt.Sprintf("rank %d %s", m.number, pass.name), spans)
	}
	return b.String(), nil
}

// draw draws the spans of a pass, one a line. Exchanges are drawn with other characters. The title
// has the time of the pass, and how much of its exchanges the products hide.
func draw(b *strings.Builder, title string, spans []parallel.Span) {
	var end, moves, hidden time.Duration
	longest := 12 // name
	for _, s := range spans {
		longest = max(longest, len(s.Name))
		end = max(end, s.To)
		if s.Moves {
			moves += s.To - s.From
			hidden += s.To - s.From - alone(s, spans)
		}
	}
	share := 0.0
	if moves > 0 {
		share = float64(hidden) / float64(moves)
	}
	fmt.Fprintf(b, "%s: %.3f ms, exchanges %.3f ms, of which %.0f %% behind other work\n", title, ms(end), ms(moves), 100*share)
	for _, s := range spans {
		mark := "#"
		if s.Moves {
			mark = "="
		}
		from, to := column(s.From, end), column(s.To, end)
		fmt.Fprintf(b, "  %-*s %2d |%s%s%s| %8.3f to %8.3f ms\n", longest, s.Name, s.Chunk, strings.Repeat(" ", from), strings.Repeat(mark, max(1, to-from)),
			strings.Repeat(" ", max(0, width-max(to, from+1))), ms(s.From), ms(s.To))
	}
}

func ms(d time.Duration) float64 { return d.Seconds() * 1e3 }

// column returns the column of a time in a pass that ends at the given time.
func column(at, end time.Duration) int {
	if end == 0 {
		return 0
	}
	return min(width-1, int(int64(at)*width/int64(end)))
}

// alone returns how long an exchange runs while no other stream works. Products on two streams may
// overlap, and so the result can be too small.
func alone(move parallel.Span, spans []parallel.Span) time.Duration {
	rest := move.To - move.From
	for _, s := range spans {
		if !s.Moves && s.Side != move.Side {
			rest -= max(0, min(s.To, move.To)-max(s.From, move.From))
		}
	}
	return max(0, rest)
}
