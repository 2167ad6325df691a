package emulated

import (
	"sync/atomic"

	"sonicmoe/driver"
)

// graph implements driver.Graph. It holds the captured operations in the order of their calls,
// with copies of their parameters.
type graph struct {
	dev    *device
	nodes  []operation
	closed atomic.Bool
}

// BeginCapture implements driver.Stream.
func (s *stream) BeginCapture() error {
	if err := s.open("BeginCapture"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record != nil {
		return invalid("BeginCapture", "the stream is being captured already")
	}
	s.record = &graph{dev: s.dev}
	return nil
}

// EndCapture implements driver.Stream.
func (s *stream) EndCapture() (driver.Graph, error) {
	if err := s.open("EndCapture"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record == nil {
		return nil, invalid("EndCapture", "the stream is not being captured")
	}
	g := s.record
	s.record = nil
	return g, nil
}

// Launch implements driver.Graph. If the stream is being captured, the graph's operations are
// added to the capture.
func (g *graph) Launch(s driver.Stream) error {
	st, ok := s.(*stream)
	if !ok || st == nil || st.dev != g.dev {
		return invalid("Graph.Launch", "the stream is not of the graph's device")
	}
	if err := st.open("Graph.Launch"); err != nil {
		return err
	}
	if g.closed.Load() {
		return invalid("Graph.Launch", "the graph is closed")
	}
	work := g.nodes
	if !st.capturing() { // a launched graph waits for the earlier work of its stream
		work = append([]operation{alone(func() error { return nil })}, work...)
	}
	return st.do(work...)
}

func (g *graph) Nodes() int { return len(g.nodes) }

func (g *graph) Close() error {
	g.closed.Store(true)
	return nil
}
