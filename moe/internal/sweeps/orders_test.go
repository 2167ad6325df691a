package sweeps_test

import (
	"context"
	"crypto/sha256"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/kernel"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/tools"
	"sonicmoe/ptx/emu"
)

// TestEveryKernelInManyOrders checks one launch of every kernel's text for races and missing proxy
// fences: in the earliest order, the latest order, and 100 random orders. The layers are the layers
// of kerneltest with smaller sizes. Without SONICMOE_LONG the test tries one random order, and one
// text for each kernel.
func TestEveryKernelInManyOrders(t *testing.T) {
	if drivertest.Name() != "emulated" {
		t.Skip("only the emulator has orders")
	}
	if testing.Short() {
		t.Skip("checks of kernels: not with -short")
	}
	o := &ordered{orders: 1, checks: map[string]int{}, texts: map[[sha256.Size]byte]bool{}}
	if kt.Long() {
		o.orders = 100
	}
	t.Run("one text per kernel", o.sweep)
	for name, n := range o.checks {
		assert.Positive(t, n, "%s was not launched", name)
	}
	if kt.Long() {
		o.everyText = true
		t.Run("all texts", o.sweep)
	}
}

// sweep runs all layers that have a kernel that was not checked yet.
func (o *ordered) sweep(t *testing.T) {
	began := time.Now()
	for i, l := range kt.Layers {
		sources, err := tools.Sources(driver.H200(), l.Config, moe.WithTilings(l.Tiles.Text()))
		require.NoError(t, err)
		wanted := o.everyText
		for _, s := range sources {
			wanted = wanted || o.checks[s.Name] == 0
			o.checks[s.Name] += 0 // makes an entry for each kernel
		}
		if !wanted {
			continue
		}
		t.Run(l.Name, func(t *testing.T) {
			start := time.Now()
			target := emulated.Target()
			target.SMs = 2 + i%2*2 // with few SMs a CTA has several tiles; with more there are several clusters
			tilings := l.Tiles.OrElse(kernel.Choose(l.Config, driver.H200()))
			o.layer(t, target, small(l.Config), i, moe.WithoutCache(), moe.WithTilings(tilings.Text()), moe.WithDecode(wideTokens))
			t.Logf("%v: %d of %d kernels, %.1f s", small(l.Config), o.here, len(o.textOf), time.Since(start).Seconds())
		})
	}
	checks := 0
	for _, n := range o.checks {
		checks += n
	}
	t.Logf("%d kernels, %d launches in %d orders each, %.0f s", len(o.checks), checks, 2+o.orders, time.Since(began).Seconds())
}

// layer runs all passes of a layer. kind is the mode of the gradients in the first backward pass.
func (o *ordered) layer(t *testing.T, target driver.Target, c moe.Config, kind int, opts ...moe.Option) {
	sources, err := tools.Sources(target, c, opts...)
	require.NoError(t, err)
	o.t, o.textOf, o.here = t, map[string][sha256.Size]byte{}, 0
	for _, s := range sources {
		o.textOf[s.Name] = sha256.Sum256(s.Module.Print().PTX)
	}
	dev, err := emulated.New(emulated.Options{Target: target, Races: true, StrictProxy: true, Launching: o.launching})
	require.NoError(t, err)
	defer jit.Forget(dev)
	layer, err := moe.New(context.Background(), dev, c, opts...)
	require.NoError(t, err)
	p := passes{t, dev, layer, moe.NewArena(dev)}
	batches := []int{largeTokens, wideTokens, fewTokens, smallTokens, 1}
	if !spec.IsPlain(c) {
		batches = append(batches, midTokens, narrowTokens, besideTokens)
	}
	for _, tokens := range batches {
		tr := p.forward(tokens)
		p.units(tr)
		if tokens == largeTokens && p.trains() {
			p.backward(tr, kind)
			p.balance(tr)
		}
		if tokens == largeTokens && c.HasLists() {
			p.list(tr)
		}
		require.NoError(t, tr.Close())
	}
	require.NoError(t, p.arena.Free())
}

// ordered checks launches of kernels in many orders of execution.
type ordered struct {
	orders    int
	everyText bool           // check every text, not one text for each kernel
	checks    map[string]int // number of checks, by kernel
	texts     map[[sha256.Size]byte]bool

	// The other fields belong to the layer that runs.
	t      *testing.T
	textOf map[string][sha256.Size]byte // by kernel name
	here   int                          // number of kernels checked in this layer
}

// launching checks a kernel's first launch.
func (o *ordered) launching(k *emu.Kernel, mem *emu.Memory, l emu.Launch) {
	text, ok := o.textOf[k.Name()]
	require.True(o.t, ok, "%s is not one of the layer's sources", k.Name())
	if o.texts[text] || !o.everyText && o.checks[k.Name()] > 0 {
		return
	}
	o.texts[text] = true
	o.checks[k.Name()]++
	o.here++
	assert.NoError(o.t, k.Check(context.Background(), mem.Clone(), l, o.orders), k.Name())
}

// The numbers of tokens of the passes. The large batch gives experts two tiles of rows, one or
// none. The other batches are for the kernels of small batches: wide CTAs, narrow CTAs with a last
// wave that is not full, and tiny CTAs. Of packed weights, CTAs with room for 32 tokens serve
// fewTokens, CTAs of 96 tokens serve midTokens, and narrow CTAs serve narrowTokens. Unpack runs next to Up for besideTokens.
const (
	besideTokens = 400
	largeTokens  = 150
	wideTokens   = 128
	midTokens    = 90
	narrowTokens = 40
	fewTokens    = 20
	smallTokens  = 5
)

// small returns a layer with the same kinds of kernels and smaller sizes, which the emulator runs
// fast. The widths keep their remainder modulo 64, and are not multiples of a tile.
func small(c moe.Config) moe.Config {
	width := func(of int) int { return 129 + (of-1)%64 }
	c.Hidden, c.Intermediate, c.SharedExperts = width(c.Hidden), width(c.Intermediate), min(c.SharedExperts, 1)
	switch {
	case c.NumExperts > 512: // more than one chunk of experts in the router
		c.NumExperts = 264
	case c.Groups > 0:
		c.NumExperts, c.TopK, c.Groups, c.TopGroups = 8, 3, 4, 2
	case !spec.IsPlain(c): // few enough experts that the wide tiles of units serve wideTokens
		c.NumExperts, c.TopK = 3, 2
	default:
		c.NumExperts, c.TopK = min(c.NumExperts, 4), min(c.TopK, 2+c.TopK%2)
	}
	if p := spec.PackingOf(c); p != nil && p.Rows == 1 && p.Columns == 128 { // a group of 128 columns does not cross the edge of a matrix
		c.Hidden, c.Intermediate = 256, 128
	}
	return c
}

// passes runs the passes of a layer.
type passes struct {
	t     *testing.T
	dev   driver.Device
	layer *moe.Layer
	arena *moe.Arena
}

// forward runs a forward pass for inference and one for training.
func (p passes) forward(tokens int) *trial.Trial {
	tr, err := trial.New(p.dev, p.layer, tokens, 1, 6)
	require.NoError(p.t, err)
	p.lean(tr)
	tr.Args.Logits = p.arena.Tensor(p.layer.Shapes(tokens).Logits)
	require.NoError(p.t, p.arena.Err())
	require.NoError(p.t, tr.Run(context.Background(), tr.Inference()))
	require.NoError(p.t, tr.Run(context.Background(), tr.Args))
	return tr
}

// units runs a forward pass with packed weights that [moe.Call.Arrange] has put in the layout for
// small batches, if the layer has this layout.
func (p passes) units(tr *trial.Trial) {
	sizes, err := p.layer.Sizes(tr.Tokens)
	require.NoError(p.t, err)
	if sizes.Units == 0 {
		return
	}
	f := tr.Args
	f.Units = p.arena.Buffer(sizes.Units)
	require.NoError(p.t, p.arena.Err())
	require.NoError(p.t, tr.Call().Arrange(tr.Stream(), f.Weights, f.Units))
	require.NoError(p.t, tr.Run(context.Background(), f))
}

// lean changes tokens and router so that the router prefers the first experts, and never chooses
// the last one.
func (p passes) lean(tr *trial.Trial) {
	c := p.layer.Config()
	x, router := make([]float64, tr.Tokens*c.Hidden), make([]float64, c.NumExperts*c.Hidden)
	require.NoError(p.t, moe.Read(tr.Stream(), tr.Args.X, x))
	require.NoError(p.t, moe.Read(tr.Stream(), tr.Args.Router, router))
	for token := range tr.Tokens {
		x[token*c.Hidden] = 1
	}
	for e := range c.NumExperts {
		router[e*c.Hidden] = -0.7 * float64(e)
	}
	router[(c.NumExperts-1)*c.Hidden] = -100
	require.NoError(p.t, moe.Write(tr.Stream(), tr.Args.X, x))
	require.NoError(p.t, moe.Write(tr.Stream(), tr.Args.Router, router))
}

// trains reports whether the layer has a backward pass. A layer with a table of adapters has none.
func (p passes) trains() bool { return p.layer.Config().LoRAAdapters == 0 }

// backward runs at least three backward passes after forward: with the layer's routing, with losses on the
// logits, and with given experts. Pass i writes gradients in mode first + i: odd modes write FP32
// weight gradients, and modes 2 and 3 of each four accumulate.
func (p passes) backward(tr *trial.Trial, first int) {
	c := p.layer.Config()
	list := []func(driver.Stream, moe.BackwardArgs) error{tr.Call().Backward, tr.Call().Backward, tr.Call().BackwardExperts}
	if c.LoRARank > 0 {
		list = append(list, tr.Call().Backward) // few layers have adapters, so each runs all four modes
	}
	for i, pass := range list {
		kind := first + i
		weights := []moe.Type{c.Type, moe.F32}[kind%2]
		require.NoError(p.t, tr.PrepareBackward(17, weights))
		b := tr.Back
		for _, g := range []*moe.Gradient{&b.DRouter, &b.DRouterBias, &b.DExpertScale, &b.DW1, &b.DW3, &b.DW2, &b.DB1, &b.DB3, &b.DB2, &b.DSharedW1, &b.DSharedW3, &b.DSharedW2, &b.DSharedGate,
			&b.DLoraA1, &b.DLoraB1, &b.DLoraB3, &b.DLoraA2, &b.DLoraB2} {
			g.Accumulate = kind/2%2 == 1 && !g.IsZero()
		}
		switch i {
		case 1:
			require.NoError(p.t, tr.AddLogitGradients(18))
			b.DLogits, b.RouterLosses, b.Balance, b.ZLoss = tr.Back.DLogits, p.arena.Tensor(c.Gradients(tr.Tokens, weights).RouterLosses), 0.1, 0.1
			require.NoError(p.t, p.arena.Err())
		case 2:
			b.DRouter, b.DRouterBias, b.DExpertScale = moe.Gradient{}, moe.Gradient{}, moe.Gradient{}
		}
		require.NoError(p.t, tr.PoisonGradients(b))
		require.NoError(p.t, pass(tr.Stream(), b))
	}
}

// balance counts the chosen experts and, if the layer has a selection bias, updates it.
func (p passes) balance(tr *trial.Trial) {
	c, s := p.layer.Config(), tr.Stream()
	loads := p.arena.Tensor(moe.TensorAt(0, moe.I32, c.NumExperts).Shape)
	require.NoError(p.t, p.arena.Err())
	require.NoError(p.t, s.Fill32(loads.Ptr, 0, int64(c.NumExperts)))
	require.NoError(p.t, tr.Call().Loads(s, tr.Args.ExpertIDs, loads))
	if c.SelectionBias {
		require.NoError(p.t, tr.Call().UpdateSelectionBias(s, loads, tr.Args.SelectionBias, 1e-3))
	}
}

// list runs passes over a list. For a layer that rounds, it is the list that rounding makes. For
// other layers, tokens have any number of experts, and some expert ids are out of range.
func (p passes) list(tr *trial.Trial) {
	c, call := p.layer.Config(), tr.Call()
	forward, backward, entries := call.Forward, call.Backward, p.layer.RoundedRows(tr.Tokens)
	if !c.Rounds() {
		forward, backward, entries = call.ForwardExperts, call.BackwardExperts, 2*tr.Tokens
	}
	sizes, err := p.layer.ListSizes(tr.Tokens, entries)
	require.NoError(p.t, err)
	shapes, f := c.ListShapes(tr.Tokens, entries), tr.Args
	f.List, f.H, f.Workspace = p.arena.RoutingList(p.layer, entries), p.arena.Tensor(shapes.H), p.arena.Buffer(max(sizes.Workspace, sizes.BackwardWorkspace))
	b := f.BackwardArgs()
	b.DO, b.DX, b.DScores, b.WeightGradients = tr.Back.DO, tr.Back.DX, p.arena.Tensor(shapes.Scores), tr.Back.WeightGradients
	require.NoError(p.t, p.arena.Err())
	if !c.Rounds() {
		b.DRouter, b.DRouterBias, b.DExpertScale = moe.Gradient{}, moe.Gradient{}, moe.Gradient{}
		tokens, experts := make([]int32, entries), make([]int32, entries)
		for i := range entries {
			tokens[i], experts[i] = int32(i*i%tr.Tokens), int32(i*i%7)
		}
		require.NoError(p.t, moe.Write(tr.Stream(), f.List.Tokens, tokens))
		require.NoError(p.t, moe.Write(tr.Stream(), f.List.ExpertIDs, experts))
		require.NoError(p.t, moe.Write(tr.Stream(), f.List.Scores, slices.Repeat([]float32{0.5}, entries)))
	}
	require.NoError(p.t, forward(tr.Stream(), f))
	if p.trains() {
		require.NoError(p.t, backward(tr.Stream(), b))
	}
}
