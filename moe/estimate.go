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

// Load is what a call is given to do.
type Workload struct {
	// Tokens is T. It may be 0 where Histogram is given.
	Tokens int
	// Histogram is the number of rows of each expert, [E], T·K in all. Nil: every
	// token's experts are any K of the E, as likely as any others.
	Histogram []int
}

// Cost are what a layer costs, known before anything runs. Times are
// rooflines on an H200, of which no kernel can be faster: see [spec.Rates].
type Cost struct {
	Tokens, Rows int
	// Weights are the bytes of the router's, the experts' and the shared experts'.
	Weights int64
	// Saved is what stays from forward to backward.
	Saved spec.Saved
	// Workspace and BackwardWorkspace are scratch memory, as Layer.Sizes gives them
	// on an H200; 0 where [Check] says that no kernel computes the layer.
	Workspace, BackwardWorkspace int64
	// Experts is the number of experts that have rows, on average.
	Experts float64
	// Padding is the share of rows that tiles of so many rows add, a tile never
	// holding rows of two experts.
	Padding []Padding
	// Forward and Backward are the least times of a training step's passes;
	// weights of experts without rows are not read in Forward. Decode is that of
	// a forward pass of one token, whose weights come from memory.
	Forward, Backward, Decode time.Duration
}

// Padding is what tiles waste.
type Padding struct {
	// Tile is the rows of a tile.
	Tile int
	// Share is the added rows over those that there are, 0 for no rows.
	Share float64
	// Rounded is the same when Config.Rounding has changed how many rows experts
	// have; Share without it.
	Rounded float64
}

// Estimate gives a layer's figures for a call. It needs no device. An error is
// an [*ArgError].
func Estimate(c Config, load Workload) (Cost, error) {
	if err := c.Check(); err != nil {
		return Cost{}, err
	}
	tokens, err := load.tokens(c)
	if err != nil {
		return Cost{}, err
	}
	s := c.Shapes(tokens)
	f := Cost{Tokens: tokens, Rows: tokens * c.TopK, Saved: c.Saved(tokens), Experts: load.touched(c, tokens)}
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
		f.Workspace, f.BackwardWorkspace = sizes.Workspace, sizes.BackwardWorkspace
	}
	for _, tile := range []int{64, 128, 256} {
		f.Padding = append(f.Padding, Padding{tile, load.padding(c, tokens, tile, Rounding{}), load.padding(c, tokens, tile, c.Rounding)})
	}
	f.Forward = forwardTime(c, tokens, f.Experts)
	f.Backward = spec.H200.Roofline(c.BackwardWork(tokens))
	f.Decode = forwardTime(c, 1, float64(c.TopK))
	return f, nil
}

// tokens checks a load, and gives its tokens.
func (l Workload) tokens(c Config) (int, error) {
	most := spec.MaxRows / c.TopK
	if l.Histogram == nil {
		if l.Tokens < 0 || l.Tokens > most {
			return 0, argErrorf("Workload.Tokens", l.Tokens, "0 to %d: T·K is below 2^31", most)
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

// touched is how many experts have rows.
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

// padding is the share of rows that tiles of so many rows add, after rounding.
func (l Workload) padding(c Config, tokens, tile int, how Rounding) float64 {
	rows, padded := 0.0, 0.0
	add := func(chosen []int, times float64) {
		counts := how.Counts(c, chosen, tokens, 0)
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

// binomial gives how likely each number of successes of so many trials is, for
// those that are likely at all.
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

// forwardTime is the roofline of a forward pass in which so many experts have rows.
func forwardTime(c Config, tokens int, experts float64) time.Duration {
	list := c.ForwardWork(tokens)
	idle := float64(c.NumExperts) - experts
	for i, w := range list {
		switch w.Kernel {
		case "up":
			list[i].Bytes -= 2 * idle * float64(c.HWidth()) * float64(c.Hidden)
		case "down":
			list[i].Bytes -= 2 * idle * float64(c.Intermediate) * float64(c.Hidden)
		}
	}
	return spec.H200.Roofline(list)
}
