package main

import (
	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/spec"
)

// pass is a way through the layer that can be measured.
type pass struct {
	// queue puts one pass on the stream.
	queue func(c *moe.Call, s driver.Stream, f moe.Forward) error
	flops func(c moe.Config, tokens int) float64
	// work is what its kernels have to do, for the roofline.
	work func(c moe.Config, tokens int) []spec.Work
	// speed is the pass's part of a peer's speed.
	speed func(s spec.Speed) float64
}

// passes are what -pass takes.
var passes = map[string]pass{
	"forward": {
		queue: (*moe.Call).Forward,
		flops: moe.Config.ForwardFLOPs, work: moe.Config.ForwardWork,
		speed: func(s spec.Speed) float64 { return s.Forward },
	},
	"inference": {
		queue: func(c *moe.Call, s driver.Stream, f moe.Forward) error {
			f.H = moe.Tensor{}
			return c.Forward(s, f)
		},
		flops: moe.Config.ForwardFLOPs, work: inferenceWork,
		speed: func(s spec.Speed) float64 { return s.Forward },
	},
}

// expertsPass is the layer after its router, with experts and scores from anywhere.
func expertsPass(c *moe.Call, s driver.Stream, f moe.Forward) error {
	return c.Experts(s, moe.Experts{X: f.X, W1: f.W1, W2: f.W2, Scores: f.Scores, Experts: f.Experts, O: f.O, H: f.H, Workspace: f.Workspace})
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
