package main

import (
	"sonicmoe/moe"
	"sonicmoe/moe/registry"
	"sonicmoe/moe/spec"
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
	products []*registry.Product
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
		flops:   moe.Config.ForwardFLOPs, work: inferenceWork,
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

// inferenceWork is a forward pass that does not store H.
func inferenceWork(c moe.Config, tokens int) []spec.Work {
	work := c.ForwardWork(tokens)
	for i := range work {
		if work[i].Kernel == "up" {
			work[i].Bytes -= float64(c.Shapes(tokens).H.Bytes())
		}
	}
	return work
}

// covered names the roofline's kernels that a kernel of the layer does; those
// that it does not name cost time without being in the roofline.
func covered(kernel string) []string {
	switch kernel {
	case "router":
		return []string{"router", "topk"}
	case "up-inference":
		return []string{"up"}
	case "dh":
		return []string{"dH"}
	case "dw1":
		return []string{"dW1"}
	case "dw2":
		return []string{"dW2"}
	case "dx":
		return []string{"dX"}
	case "sum":
		return []string{"aggregate"}
	}
	return []string{kernel}
}

// workOf is the roofline's work of one kernel of the layer; false when the
// roofline has none.
func workOf(kernel string, all []spec.Work) (sum spec.Work, ms float64, ok bool) {
	sum.Kernel = kernel
	for _, name := range covered(kernel) {
		for _, w := range all {
			if w.Kernel == name {
				sum.FLOPs += w.FLOPs
				sum.Bytes += w.Bytes
				ms += milliseconds(spec.H200.Time(w))
				ok = true
			}
		}
	}
	return sum, ms, ok
}

// peersOf lists the recorded speeds of others at a row, in TFLOPS.
func peersOf(r spec.Row, p pass) []Peer {
	var list []Peer
	for _, q := range []struct {
		name  string
		speed spec.Speed
	}{{"cuBLAS", r.CuBLAS}, {"SonicMoE", r.Sonic}, {"MoMoE", r.MoMoE}, {"ScatterMoE", r.ScatterMoE}, {"torch", r.Torch}} {
		if v := p.speed(q.speed); v > 0 {
			list = append(list, Peer{Name: q.name, TFLOPS: v})
		}
	}
	return list
}
