package emulated

import (
	"sync/atomic"

	"sonicmoe/driver"
)

// graph implements driver.Graph: the recorded work.
type graph struct {
	dev    *device
	work   []func() error
	closed atomic.Bool
}

func (g *graph) Launch(s driver.Stream) error {
	st, ok := s.(*stream)
	if !ok || st.dev != g.dev {
		return invalid("graph launch", "the stream is not of this device")
	}
	if g.closed.Load() {
		return invalid("graph launch", "the graph is closed")
	}
	return st.do("graph launch", func() error {
		for _, w := range g.work {
			if err := w(); err != nil {
				return err
			}
		}
		return nil
	})
}

func (g *graph) Nodes() int { return len(g.work) }

func (g *graph) Close() error {
	g.closed.Store(true)
	return nil
}
