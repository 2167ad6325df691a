package moe

import (
	"fmt"
	"math"
	"time"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
)

// Workload describes a call.
type Workload struct {
	// Tokens is T. It may be 0 if Histogram is given.
	Tokens int
	// Histogram [E] is the number of rows of each expert, T·K in all. If it is nil,
	// every choice of K experts is equally likely for each token.
	Histogram []int
}

// Cost has the costs of a layer, which are known before anything runs. Times are rooflines on an
// H200: no kernel can be faster. See [spec.Rates].
type Cost struct {
	Tokens, Rows int
	// Weights is the size of the weights of the router, the experts and the shared
	// experts, in bytes.
	Weights int64
	// Units is the size of the buffer for Call.Arrange, a second copy of packed weights, in bytes. It
	// is 0 if [Check] says that no kernel computes the layer.
	Units int64
	// Saved is the size of the tensors that stay from forward to backward, in bytes.
	Saved int64
	// Workspace and BackwardWorkspace are the scratch memory of Layer.Sizes on an
	// H200. They are 0 if [Check] says that no kernel computes the layer.
	Workspace, BackwardWorkspace int64
	// Experts is the average number of experts with rows.
	Experts float64
	// Padding has the share of added rows for tiles of 64, 128 and 256 rows: the number of rows
	// that such tiles add divided by the number of rows, after Config.Rounding. A tile never has
	// rows of two experts.
	Padding map[int]float64
	// Forward and Backward are the least times of the passes of a training step.
	// Forward does not read the weights of experts without rows. Decode is the
	// least time of a forward pass of one token, with the weights in memory.
	Forward, Backward, Decode time.Duration
}

// Estimate returns the costs of a layer for a call. It needs no device. An error is
// an [*ArgError].
func Estimate(c Config, load Workload) (Cost, error) {
	if err := c.Check(); err != nil {
		return Cost{}, err
	}
	c = c.Normal()
	tokens, err := load.tokens(c)
	if err != nil {
		return Cost{}, err
	}
	s := c.Shapes(tokens)
	f := Cost{Tokens: tokens, Rows: tokens * c.TopK, Saved: c.SavedBytes(tokens), Experts: load.touched(c, tokens), Padding: map[int]float64{64: 0, 128: 0, 256: 0}}
	for _, id := range spec.Weights {
		f.Weights += s.Of(id).Bytes()
	}
	if Check(c) == nil {
		t := driver.H200()
		l := &Layer{of: registry.Layer{Config: c, Tiles: kernel.Choose(c, t)}, sms: t.SMs}
		l.withShared(t, options{})
		sizes, err := l.Sizes(tokens)
		if err != nil {
			return Cost{}, err
		}
		f.Workspace, f.BackwardWorkspace, f.Units = sizes.Workspace, sizes.BackwardWorkspace, sizes.Units
	}
	for tile := range f.Padding {
		f.Padding[tile] = load.padding(c, tokens, tile)
	}
	f.Forward = spec.H200.Roofline(spec.ForwardWorkOf(c, tokens, f.Experts))
	f.Backward = spec.H200.Roofline(spec.BackwardWork(c, tokens))
	f.Decode = spec.H200.Roofline(spec.ForwardWorkOf(c, 1, float64(c.TopK)))
	return f, nil
}

// tokens checks a workload and returns its number of tokens.
func (l Workload) tokens(c Config) (int, error) {
	most := spec.MaxRows / c.TopK
	if l.Histogram == nil {
		if l.Tokens <= 0 || l.Tokens > most {
			return 0, argErrorf("Workload.Tokens", l.Tokens, "1 to %d, or a Histogram: T·K is below 2^31", most)
		}
		return l.Tokens, nil
	}
	if len(l.Histogram) != c.NumExperts {
		return 0, argErrorf("Workload.Histogram", fmt.Sprintf("%d experts", len(l.Histogram)), "of %d", c.NumExperts)
	}
	rows := 0
	for e, n := range l.Histogram {
		if n < 0 || n > spec.MaxRows-rows {
			return 0, argErrorf(fmt.Sprintf("Workload.Histogram[%d]", e), n, "0 or more, all together below 2^31")
		}
		rows += n
	}
	if rows%c.TopK != 0 {
		return 0, argErrorf("Workload.Histogram", fmt.Sprintf("%d rows", rows), "of a multiple of %d, each token's experts", c.TopK)
	}
	tokens := rows / c.TopK
	if l.Tokens != 0 && l.Tokens != tokens {
		return 0, argErrorf("Workload.Tokens", l.Tokens, "0, or %d: the histogram has %d rows, %d a token", tokens, rows, c.TopK)
	}
	return tokens, nil
}

// touched returns the number of experts with rows.
func (l Workload) touched(c Config, tokens int) float64 {
	if l.Histogram == nil {
		e := float64(c.NumExperts)
		return e * (1 - math.Pow(1-float64(c.TopK)/e, float64(tokens)))
	}
	count := 0.0
	for _, n := range l.Histogram {
		if n > 0 {
			count++
		}
	}
	return count
}

// padding returns the share of rows that tiles of the given number of rows add,
// after rounding.
func (l Workload) padding(c Config, tokens, tile int) float64 {
	rows, padded := 0.0, 0.0
	add := func(chosen []int, times float64) {
		counts := c.Rounding.Counts(c, chosen, tokens, 0)
		for _, n := range counts {
			rows += times * float64(n)
		}
		padded += times * float64(spec.PaddedRows(counts, tile))
	}
	if l.Histogram != nil {
		add(l.Histogram, 1)
	} else if tokens > 0 {
		binomial(tokens, float64(c.TopK)/float64(c.NumExperts), func(n int, p float64) { add([]int{n}, float64(c.NumExperts)*p) })
	}
	if rows == 0 {
		return 0
	}
	return padded/rows - 1
}

// binomial calls the function do for each possible number of successes in the given number of
// trials, with its probability. It leaves out negligible probabilities.
func binomial(trials int, p float64, do func(n int, likely float64)) {
	if p >= 1 {
		do(trials, 1)
		return
	}
	mean := float64(trials) * p
	wide := 9*math.Sqrt(mean*(1-p)) + 9
	lgamma := func(n int) float64 { v, _ := math.Lgamma(float64(n + 1)); return v }
	for n := max(0, int(mean-wide)); n <= min(trials, int(mean+wide)); n++ {
		do(n, math.Exp(lgamma(trials)-lgamma(n)-lgamma(trials-n)+float64(n)*math.Log(p)+float64(trials-n)*math.Log1p(-p)))
	}
}
