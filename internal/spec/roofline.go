package spec

import (
	"slices"
	"time"
)

// Work is a lower bound on the operations and the memory traffic of a kernel.
type Work struct {
	// Kernel is the kernel's name: "router", "up", "aggregate".
	Kernel string
	// FLOPs counts a multiply-add as two operations.
	FLOPs float64
	// Bytes is the least traffic with device memory. Each tensor counts once. Gathered rows are
	// read K times, but all reads after the first hit the L2 cache.
	Bytes float64
}

// Rates are the sustained rates of a chip.
type Rates struct {
	// FLOPs is the rate of dense bf16 products, in operations per second.
	FLOPs float64
	// Bytes is the rate of device memory, in bytes per second.
	Bytes float64
}

// H200 holds the rates that an H200 reached in an 8192³ bf16 product and in a copy of 8 GB.
var H200 = Rates{FLOPs: 795e12, Bytes: 4.29e12}

// Time returns the least time of the work: the time of its operations or of its bytes,
// whichever is longer.
func (r Rates) Time(w Work) time.Duration {
	return seconds(max(w.FLOPs/r.FLOPs, w.Bytes/r.Bytes))
}

// Roofline returns the least time of kernels that run one after another: the sum of their
// Times.
func (r Rates) Roofline(kernels []Work) time.Duration {
	var sum float64
	for _, w := range kernels {
		sum += max(w.FLOPs/r.FLOPs, w.Bytes/r.Bytes)
	}
	return seconds(sum)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// ForwardFLOPs returns the operations of the routed experts' products in a forward pass: 6TKnd,
// or 4TKnd without a gate. Router and shared experts are not counted.
func (c Config) ForwardFLOPs(tokens int) float64 { return productsFLOPs(c.sizes(tokens), false) }

// BackwardFLOPs returns the operations of the routed experts' products in a backward pass.
func (c Config) BackwardFLOPs(tokens int) float64 { return productsFLOPs(c.sizes(tokens), true) }

// TFLOPS returns the speed in 10^12 operations per second.
func TFLOPS(flops float64, t time.Duration) float64 { return flops / t.Seconds() / 1e12 }

// RouterWork returns the work of the router product.
func RouterWork(c Config, tokens int) Work {
	s := c.sizes(tokens)
	return Work{"router", 2 * s.t * s.d * s.e, 2 * (s.t*s.d + s.e*s.d + s.t*s.e)}
}

// TopKWork returns the work of choosing the experts.
func TopKWork(c Config, tokens int) Work {
	s := c.sizes(tokens)
	return Work{"topk", 0, 2*s.t*s.e + 8*s.r}
}

// UpInferenceWork returns the work of the up-projection in a pass that does not store H.
func UpInferenceWork(c Config, tokens int) Work {
	w := ProductUp.Work(c, tokens)
	w.Bytes -= float64(c.Shapes(tokens).H.Bytes())
	return w
}

// AggregateWork returns the work of summing the expert outputs of each token.
func AggregateWork(c Config, tokens int) Work {
	s := c.sizes(tokens)
	return Work{"aggregate", 0, 2 * (s.r*s.d + s.t*s.d)}
}

// ForwardWork returns the work of a forward pass for training: router and top-K (one kernel),
// up, down, aggregate, and the products of the shared experts. The plan kernel, which sorts the
// rows by expert, is negligible and left out.
func ForwardWork(c Config, tokens int) []Work {
	return ForwardWorkOf(c, tokens, float64(c.NumExperts))
}

// ForwardWorkOf returns the work of a forward pass in which only some experts have rows. The
// parameter experts is the number of these experts. The weights of the other experts are not read.
func ForwardWorkOf(c Config, tokens int, experts float64) []Work {
	list := []Work{RouterWork(c, tokens), TopKWork(c, tokens)}
	s := c.sizes(tokens)
	s.e = experts
	list = append(append(list, productsWork(s, false)...), AggregateWork(c, tokens))
	return append(list, sharedWork(c, tokens, false)...)
}

// InferenceWork returns the work of a forward pass that does not store H.
func InferenceWork(c Config, tokens int) []Work {
	list := ForwardWork(c, tokens)
	list[slices.Index(list, ProductUp.Work(c, tokens))] = UpInferenceWork(c, tokens)
	return list
}

// BackwardWork returns the work of a backward pass that computes all gradients except the
// router's.
func BackwardWork(c Config, tokens int) []Work {
	list := append(productsWork(c.sizes(tokens), true), AggregateWork(c, tokens))
	return append(list, sharedWork(c, tokens, true)...)
}

// sharedWork returns the work of the products of the shared experts, if there are any.
func sharedWork(c Config, tokens int, backward bool) (list []Work) {
	if shared, ok := c.Shared(); ok {
		list = productsWork(shared.sizes(tokens), backward)
		for i := range list {
			list[i].Kernel = "shared " + list[i].Kernel
		}
	}
	return list
}

// sizes are the extents of a pass as floats, because their products may overflow integers.
type sizes struct {
	// t is the number of tokens T, r the number of rows R = T·K, d = Hidden, n = Intermediate,
	// e = NumExperts, and h = HWidth.
	t, r, d, n, e, h float64
	// weightBytes is the size of one weight of the experts. packed reports whether the weights
	// are packed.
	weightBytes float64
	packed      bool
}

func (c Config) sizes(tokens int) sizes {
	t := float64(tokens)
	return sizes{t: t, r: t * float64(c.TopK), d: float64(c.Hidden), n: float64(c.Intermediate), e: float64(c.NumExperts), h: float64(c.HWidth()), weightBytes: c.bytesOfWeight(), packed: c.packing() != nil}
}

// w1 and w2 are the numbers of elements of one expert's weights. w1 counts gate and up.
func (s sizes) w1() float64 { return s.h * s.d }
func (s sizes) w2() float64 { return s.n * s.d }
