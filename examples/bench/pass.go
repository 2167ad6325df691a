package main

import (
	"sonicmoe/examples/bench/report"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	"sonicmoe/moe/tune"
)

// pass is a way through the layer that can be measured.
type pass struct {
	name string
	// backward: it makes gradients, of what a forward pass has saved before.
	backward bool
	// queue puts one pass on the stream, experts the part of it behind the
	// router, with experts and scores from anywhere.
	queue, experts func(u *subject) error
	flops          func(c moe.Config, tokens int) float64
	// work is what its kernels have to do, for the roofline.
	work func(c moe.Config, tokens int) []spec.Work
	// speed is the pass's part of a peer's speed.
	speed func(s spec.Speed) float64
	// products are its kernels that have tile points.
	products []*tune.Product
}

// passes are what can be measured.
var passes = map[string]pass{
	"forward": {
		name:  "forward",
		queue: func(u *subject) error { return u.call.Forward(u.s, u.args) }, experts: (*subject).forwardExperts,
		flops: moe.Config.ForwardFLOPs, work: moe.Config.ForwardWork,
		speed: func(s spec.Speed) float64 { return s.Forward }, products: productsOf(false),
	},
	"inference": {
		name: "inference",
		queue: func(u *subject) error {
			f := u.args
			f.H = moe.Tensor{}
			return u.call.Forward(u.s, f)
		},
		experts: (*subject).forwardExperts,
		flops:   moe.Config.ForwardFLOPs, work: moe.Config.InferenceWork,
		speed: func(s spec.Speed) float64 { return s.Forward }, products: productsOf(false),
	},
	"backward": {
		name: "backward", backward: true,
		queue: func(u *subject) error { return u.call.Backward(u.s, u.back) }, experts: (*subject).backwardExperts,
		flops: moe.Config.BackwardFLOPs, work: moe.Config.BackwardWork,
		speed: func(s spec.Speed) float64 { return s.Backward }, products: productsOf(true),
	},
}

// passLists are what -pass takes: each is measured in a section of its own.
var passLists = map[string][]string{
	"forward": {"forward"}, "inference": {"inference"}, "backward": {"backward"}, "both": {"forward", "backward"},
}

// workOf is the roofline's work of one kernel of the layer, and its time there;
// false when the roofline leaves the kernel out.
func workOf(name string, c moe.Config, tokens int) (sum spec.Work, ms float64, ok bool) {
	sum.Kernel = name
	for _, w := range tune.WorkOf(name, c, tokens) {
		sum.FLOPs += w.FLOPs
		sum.Bytes += w.Bytes
		ms += report.Milliseconds(spec.H200.Time(w))
		ok = true
	}
	return sum, ms, ok
}

// peersOf lists the recorded speeds of others at a row, in TFLOPS.
func peersOf(r spec.Row, p pass) []report.Peer {
	var list []report.Peer
	for _, q := range []struct {
		name  string
		speed spec.Speed
	}{{"cuBLAS", r.CuBLAS}, {"SonicMoE", r.Sonic}, {"MoMoE", r.MoMoE}, {"ScatterMoE", r.ScatterMoE}, {"torch", r.Torch}} {
		if v := p.speed(q.speed); v > 0 {
			list = append(list, report.Peer{Name: q.name, TFLOPS: v})
		}
	}
	return list
}
