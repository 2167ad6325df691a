package main

import (
	"sonicmoe/examples/bench/report"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	"sonicmoe/moe/tools"
)

// pass describes a pass of the layer that can be measured.
type pass struct {
	name string
	// backward reports whether the pass computes gradients. It then runs after a forward pass.
	backward bool
	// queue queues one pass. experts queues the part of the pass after the router, with given
	// expert ids and scores.
	queue, experts func(u *subject) error
	flops          func(c moe.Config, tokens int) float64
	// work returns the work of the pass's kernels, from which the roofline follows.
	work func(c moe.Config, tokens int) []spec.Work
	// speed returns the speed of a competitor in the pass.
	speed func(s peers.Speed) float64
	// products lists the grouped products of the pass that have tilings to choose from.
	products []*tools.Product
}

// passes holds the passes by name.
var passes = map[string]pass{
	"forward": {
		name:  "forward",
		queue: func(u *subject) error { return u.Call().Forward(u.Stream(), u.Args) }, experts: (*subject).forwardExperts,
		flops: moe.Config.ForwardFLOPs, work: spec.ForwardWork,
		speed: func(s peers.Speed) float64 { return s.Forward }, products: productsOf(false),
	},
	"inference": {
		name: "inference",
		queue: func(u *subject) error {
			f := u.Args
			f.H = moe.Tensor{}
			return u.Call().Forward(u.Stream(), f)
		},
		experts: (*subject).forwardExperts,
		flops:   moe.Config.ForwardFLOPs, work: spec.InferenceWork,
		speed: func(s peers.Speed) float64 { return s.Forward }, products: productsOf(false),
	},
	"backward": {
		name: "backward", backward: true,
		queue: func(u *subject) error { return u.Call().Backward(u.Stream(), u.Back) }, experts: (*subject).backwardExperts,
		flops: moe.Config.BackwardFLOPs, work: spec.BackwardWork,
		speed: func(s peers.Speed) float64 { return s.Backward }, products: productsOf(true),
	},
}

// passLists maps each value of -pass to its passes. Each pass has a section of its own in the
// report.
var passLists = map[string][]string{
	"forward": {"forward"}, "inference": {"inference"}, "backward": {"backward"}, "both": {"forward", "backward"},
}

// workOf returns the work of a kernel of the layer, and the roofline's time for it in
// milliseconds. ok reports whether the roofline counts the kernel.
func workOf(name string, c moe.Config, tokens int) (sum spec.Work, ms float64, ok bool) {
	sum.Kernel = name
	for _, w := range tools.WorkOf(name, c, tokens) {
		sum.FLOPs += w.FLOPs
		sum.Bytes += w.Bytes
		ms += report.Milliseconds(spec.H200.Time(w))
		ok = true
	}
	return sum, ms, ok
}

// peersOf returns the recorded speeds of other implementations for a row, in TFLOPS.
func peersOf(r peers.Row, p pass) []report.Peer {
	var list []report.Peer
	for _, q := range []struct {
		name  string
		speed peers.Speed
	}{{"cuBLAS", r.CuBLAS}, {"SonicMoE", r.Sonic}, {"MoMoE", r.MoMoE}, {"ScatterMoE", r.ScatterMoE}, {"torch", r.Torch}} {
		if v := p.speed(q.speed); v > 0 {
			list = append(list, report.Peer{Name: q.name, TFLOPS: v})
		}
	}
	return list
}
