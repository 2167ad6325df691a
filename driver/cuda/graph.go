package cuda

import (
	"unsafe"

	"sonicmoe/driver"
)

// captureRelaxed is CU_STREAM_CAPTURE_MODE_RELAXED. In this mode a capture may begin and end on
// different threads, which goroutines need.
const captureRelaxed = 2

// graph is an executable graph, a CUgraphExec.
type graph struct {
	handle
	dev   *device
	nodes int
}

// BeginCapture implements driver.Stream.
func (s *stream) BeginCapture() error {
	if err := s.use("BeginCapture", "stream"); err != nil {
		return err
	}
	defer s.leave()
	return s.dev.doNumbers(symStreamBeginCapture, s.raw, captureRelaxed)
}

// EndCapture implements driver.Stream.
func (s *stream) EndCapture() (driver.Graph, error) {
	if err := s.use("EndCapture", "stream"); err != nil {
		return nil, err
	}
	defer s.leave()
	d := s.dev
	var captured uintptr // a CUgraph, from which the executable graph is made
	if err := d.do(symStreamEndCapture, s.raw, uintptr(unsafe.Pointer(&captured))); err != nil {
		return nil, err
	}
	defer func() { _ = d.doNumbers(symGraphDestroy, captured) }()
	var nodes uint64
	if err := d.do(symGraphGetNodes, captured, 0, uintptr(unsafe.Pointer(&nodes))); err != nil {
		return nil, err
	}
	g := &graph{dev: d, nodes: int(nodes)}
	if err := d.do(symGraphInstantiate, uintptr(unsafe.Pointer(&g.raw)), captured, 0); err != nil {
		return nil, withText(err, "a graph of %d nodes", nodes)
	}
	return g, nil
}

// Launch implements driver.Graph.
func (g *graph) Launch(s driver.Stream) error {
	st, ok := s.(*stream)
	if !ok || st.dev != g.dev {
		return invalid("Launch", "the stream is not of the graph's device")
	}
	if err := g.use("Launch", "graph"); err != nil {
		return err
	}
	defer g.leave()
	if err := st.use("Launch", "stream"); err != nil {
		return err
	}
	defer st.leave()
	return g.dev.doNumbers(symGraphLaunch, g.raw, st.raw)
}

// Native returns the graph's CUcontext and CUgraphExec, and the addresses of cuCtxSetCurrent,
// cuStreamIsCapturing and cuGraphLaunch. C code can launch the graph with them until Close.
func (g *graph) Native() (context, exec uintptr, functions [3]uintptr) {
	a := &g.dev.lib.addr
	return g.dev.context[0], g.raw, [3]uintptr{a[symCtxSetCurrent], a[symStreamIsCapturing], a[symGraphLaunch]}
}

// Nodes implements driver.Graph.
func (g *graph) Nodes() int { return g.nodes }

// Close implements driver.Graph.
func (g *graph) Close() error {
	return g.close(func() error { return g.dev.doNumbers(symGraphExecDestroy, g.raw) })
}
