//go:build cgo && linux

package main

// #include "cuda.h"
import "C"

import (
	"slices"
	"sync"
)

// Kinds of nodes, with the numbers of cudaGraphNodeType.
const (
	nodeKernel = 0
	nodeCopy   = 1
	nodeFill   = 2
	nodeHost   = 3
	nodeChild  = 4
	nodeEmpty  = 5
	nodeWait   = 6
	nodeRecord = 7
	nodeAlloc  = 10
	nodeFree   = 11
)

// node is one operation of a stream or a graph. At most one of launch, run and call is set.
type node struct {
	kind   int32
	after  []*node
	order  *order                // the launch of a kernel node
	launch func(s *stream) error // launches a kernel; the caller holds device.work
	run    func() error          // copies or fills memory; the caller holds device.work
	call   func()                // calls a function of the program; the caller holds no lock
	child  *graph
	off    bool // the program has switched the node off
}

// graph is a list of nodes, or an executable copy of one.
type graph struct {
	mu      sync.Mutex
	nodes   []*node
	streams []*stream       // streams that capture into the graph
	copies  map[*node]*node // in an executable graph: the copy of each node of the original graph
}

func (g *graph) add(n *node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.nodes = append(g.nodes, n)
}

func (g *graph) join(s *stream) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.streams = append(g.streams, s)
}

func (g *graph) capturing() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.streams) > 0
}

// clone returns a copy of the graph with nodes of its own.
func (g *graph) clone() *graph {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := &graph{copies: map[*node]*node{}}
	for _, n := range g.nodes {
		m := *n
		if n.child != nil {
			m.child = n.child.clone()
		}
		c.copies[n] = &m
		c.nodes = append(c.nodes, &m)
	}
	for _, m := range c.nodes {
		after := slices.Clone(m.after)
		for i, n := range after {
			after[i] = c.copies[n]
		}
		m.after = after
	}
	return c
}

// sorted returns the nodes so that each one comes after the nodes that it depends on.
func (g *graph) sorted() ([]*node, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	done, out := map[*node]bool{}, []*node(nil)
	for len(out) < len(g.nodes) {
		n := len(out)
		for _, x := range g.nodes {
			if !done[x] && !slices.ContainsFunc(x.after, func(y *node) bool { return !done[y] }) {
				done[x] = true
				out = append(out, x)
			}
		}
		if len(out) == n {
			return nil, failed(invalidValue, "the graph's dependencies have a cycle")
		}
	}
	return out, nil
}

// launchIn runs the graph in a stream.
func (g *graph) launchIn(d *device, s *stream) error {
	list, err := g.sorted()
	if err != nil {
		return err
	}
	for _, n := range list {
		switch {
		case n.off:
		case n.child != nil:
			err = n.child.launchIn(d, s)
		default:
			err = d.perform(n, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

//export cudaStreamBeginCapture
func cudaStreamBeginCapture(h uintptr, _ int32) int32 {
	s, err := look(dev(), dev().streams, h, "stream")
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case h == 0 || s.captured != nil:
			err = failed(captureUnsupported, "the stream is the default one, or being captured")
		default:
			s.captured, s.last = &graph{streams: []*stream{s}}, nil
		}
	}
	return result("cudaStreamBeginCapture", err)
}

//export cudaStreamEndCapture
func cudaStreamEndCapture(stream uintptr, p *uintptr) int32 {
	d := dev()
	s, err := look(d, d.streams, stream, "stream")
	if err != nil {
		return result("cudaStreamEndCapture", err)
	}
	g := s.capture()
	if g == nil {
		return result("cudaStreamEndCapture", failed(invalidValue, "the stream is not being captured"))
	}
	g.mu.Lock()
	list := g.streams
	g.streams = nil
	g.mu.Unlock()
	for _, s := range list {
		s.mu.Lock()
		s.captured, s.last = nil, nil
		s.mu.Unlock()
	}
	*p = add(d, d.graphs, g)
	return 0
}

//export cudaStreamIsCapturing
func cudaStreamIsCapturing(stream uintptr, state *int32) int32 {
	s, err := look(dev(), dev().streams, stream, "stream")
	if err == nil {
		if *state = 0; s.capture() != nil {
			*state = 1
		}
	}
	return result("cudaStreamIsCapturing", err)
}

//export cudaThreadExchangeStreamCaptureMode
func cudaThreadExchangeStreamCaptureMode(_ *int32) int32 { return 0 }

//export cudaGraphCreate
func cudaGraphCreate(p *uintptr, _ uint32) int32 {
	*p = add(dev(), dev().graphs, &graph{})
	return 0
}

//export cudaGraphDestroy
func cudaGraphDestroy(h uintptr) int32 {
	return result("cudaGraphDestroy", drop(dev(), dev().graphs, h, "graph"))
}

//export cudaGraphClone
func cudaGraphClone(p *uintptr, h uintptr) int32 { return result("cudaGraphClone", instantiate(p, h)) }

func instantiate(p *uintptr, h uintptr) error {
	d := dev()
	g, err := look(d, d.graphs, h, "graph")
	if err != nil {
		return err
	}
	c := g.clone()
	if _, err := c.sorted(); err != nil {
		return err
	}
	*p = add(d, d.graphs, c)
	return nil
}

//export cudaGraphInstantiate
func cudaGraphInstantiate(p *uintptr, h, ignored1, ignored2, ignored3 uintptr) int32 {
	return result("cudaGraphInstantiate", instantiate(p, h))
}

//export cudaGraphInstantiateWithFlags
func cudaGraphInstantiateWithFlags(p *uintptr, h uintptr, _ uint64) int32 {
	return result("cudaGraphInstantiate", instantiate(p, h))
}

//export cudaGraphExecDestroy
func cudaGraphExecDestroy(h uintptr) int32 {
	return result("cudaGraphExecDestroy", drop(dev(), dev().graphs, h, "graph"))
}

//export cudaGraphUpload
func cudaGraphUpload(ignored1, ignored2 uintptr) int32 { return 0 }

//export cudaGraphLaunch
func cudaGraphLaunch(h, in uintptr) int32 {
	d := dev()
	g, err := look(d, d.graphs, h, "executable graph")
	var s *stream
	if err == nil {
		s, err = look(d, d.streams, in, "stream")
	}
	if err == nil {
		if s.capture() != nil {
			_, err = s.do(&node{kind: nodeChild, child: g.clone()})
		} else {
			err = g.launchIn(d, s)
		}
	}
	return result("cudaGraphLaunch", err)
}
