package spec

import "time"

// Work is the least work of a kernel.
type Work struct {
	// Kernel is the kernel's name: "router", "up", "aggregate".
	Kernel string
	// FLOPs counts a multiply-add as two.
	FLOPs float64
	// Bytes is the least traffic with device memory. Each tensor counts once: gathered
	// rows, which are read K times, come from the L2 cache.
	Bytes float64
}

// Rates are the sustained speeds of a chip.
type Rates struct {
	// FLOPs per second of dense bf16 products.
	FLOPs float64
	// Bytes per second of device memory.
	Bytes float64
}

// H200 are the rates of an H200 for an 8192³ bf16 product and an 8 GB copy.
var H200 = Rates{FLOPs: 795e12, Bytes: 4.29e12}

// Time returns the least time of the work: of its operations or its bytes, whichever
// takes longer.
func (r Rates) Time(w Work) time.Duration {
	return seconds(max(w.FLOPs/r.FLOPs, w.Bytes/r.Bytes))
}

// Roofline returns the least time of kernels that run one after another.
func (r Rates) Roofline(kernels []Work) time.Duration {
	var sum float64
	for _, w := range kernels {
		sum += max(w.FLOPs/r.FLOPs, w.Bytes/r.Bytes)
	}
	return seconds(sum)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// ForwardFLOPs returns the operations of the experts' products in a forward pass,
// without router and shared experts: 6TKnd, or 4TKnd without a gate.
func (c Config) ForwardFLOPs(tokens int) float64 {
	_, r, d, n, _ := c.floats(tokens)
	return 2 * r * (c.h() + n) * d
}

// BackwardFLOPs returns the operations of the experts' products in a backward pass.
func (c Config) BackwardFLOPs(tokens int) float64 { return 2 * c.ForwardFLOPs(tokens) }

// TFLOPS returns a speed in 10^12 operations a second.
func TFLOPS(flops float64, t time.Duration) float64 { return flops / t.Seconds() / 1e12 }

// RouterWork returns the work of the router product.
func (c Config) RouterWork(tokens int) Work {
	t, _, d, _, e := c.floats(tokens)
	return Work{"router", 2 * t * d * e, 2 * (t*d + e*d + t*e)}
}

// TopKWork returns the work of choosing the experts.
func (c Config) TopKWork(tokens int) Work {
	t, r, _, _, e := c.floats(tokens)
	return Work{"topk", 0, 2*t*e + 8*r}
}

// UpWork returns the work of the up-projection of a pass that stores H.
func (c Config) UpWork(tokens int) Work {
	t, r, d, n, e := c.floats(tokens)
	return Work{"up", 2 * r * c.h() * d, 2 * (t*d + e*c.h()*d + r*c.h() + r*n)}
}

// UpInferenceWork returns the work of the up-projection of a pass that does not
// store H.
func (c Config) UpInferenceWork(tokens int) Work {
	w := c.UpWork(tokens)
	w.Bytes -= float64(c.Shapes(tokens).H.Bytes())
	return w
}

// DownWork returns the work of the down-projection.
func (c Config) DownWork(tokens int) Work {
	_, r, d, n, e := c.floats(tokens)
	return Work{"down", 2 * r * n * d, 2 * (r*n + e*n*d + r*d)}
}

// AggregateWork returns the work of the sum over the rows of each token.
func (c Config) AggregateWork(tokens int) Work {
	t, r, d, _, _ := c.floats(tokens)
	return Work{"aggregate", 0, 2 * (r*d + t*d)}
}

// DHWork returns the work of the gradient of H.
func (c Config) DHWork(tokens int) Work {
	t, r, d, n, e := c.floats(tokens)
	return Work{"dh", 2 * r * n * d, 2 * (t*d + e*n*d + 2*r*c.h() + r*n)}
}

// DW2Work returns the work of the gradient of W2.
func (c Config) DW2Work(tokens int) Work {
	t, r, d, n, e := c.floats(tokens)
	return Work{"dw2", 2 * r * n * d, 2 * (t*d + r*n + e*n*d)}
}

// DXWork returns the work of the gradient of the rows of X.
func (c Config) DXWork(tokens int) Work {
	_, r, d, _, e := c.floats(tokens)
	return Work{"dx", 2 * r * c.h() * d, 2 * (r*c.h() + e*c.h()*d + r*d)}
}

// DW1Work returns the work of the gradient of W1.
func (c Config) DW1Work(tokens int) Work {
	t, r, d, _, e := c.floats(tokens)
	return Work{"dw1", 2 * r * c.h() * d, 2 * (t*d + r*c.h() + e*c.h()*d)}
}

// ForwardWork returns the work of a training forward pass: router and top-K (one
// kernel), up, down, aggregate, and the products of shared experts. The plan's work
// is negligible and left out.
func (c Config) ForwardWork(tokens int) []Work {
	list := []Work{c.RouterWork(tokens), c.TopKWork(tokens), c.UpWork(tokens), c.DownWork(tokens), c.AggregateWork(tokens)}
	if s, ok := c.Shared(); ok {
		list = append(list, named("shared ", s.UpWork(tokens), s.DownWork(tokens))...)
	}
	return list
}

// InferenceWork returns the work of a forward pass that does not store H.
func (c Config) InferenceWork(tokens int) []Work {
	list := c.ForwardWork(tokens)
	for i, w := range list {
		if w.Kernel == "up" {
			list[i] = c.UpInferenceWork(tokens)
		}
	}
	return list
}

// BackwardWork returns the work of a backward pass with all gradients except the
// router's.
func (c Config) BackwardWork(tokens int) []Work {
	list := []Work{c.DHWork(tokens), c.DW2Work(tokens), c.DXWork(tokens), c.DW1Work(tokens), c.AggregateWork(tokens)}
	if s, ok := c.Shared(); ok {
		list = append(list, named("shared ", s.DHWork(tokens), s.DW2Work(tokens), s.DXWork(tokens), s.DW1Work(tokens))...)
	}
	return list
}

func named(prefix string, list ...Work) []Work {
	for i := range list {
		list[i].Kernel = prefix + list[i].Kernel
	}
	return list
}

// h is HWidth.
func (c Config) h() float64 { return float64(c.HWidth()) }

// floats returns T, R, d, n and E as floats: their products overflow integers.
func (c Config) floats(tokens int) (t, r, d, n, e float64) {
	t = float64(tokens)
	return t, t * float64(c.TopK), float64(c.Hidden), float64(c.Intermediate), float64(c.NumExperts)
}
