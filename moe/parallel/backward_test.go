package parallel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// backwardCases lists layers, each named by what is special about its gradients. The gradient of
// the router's weights has ranges of 64 tokens for layers with 24 experts and a width of 64.
func backwardCases() (list []testCase) {
	groups := [][]int{{70}, {20, 0, 130}, {5, 0, 7, 3, 8, 0, 61, 66}, {64, 70}, {13, 27}, {40, 90, 1, 70}}
	if testing.Short() {
		groups = groups[:3]
	}
	for _, tokens := range groups {
		list = append(list, testCase{name: "ranks", config: small, tokens: tokens})
	}
	list = append(list, testCase{name: "one device", config: small, tokens: []int{20, 0, 130}, together: true})
	biased := small
	biased.Bias, biased.RouterBias = true, true
	list = append(list, testCase{name: "added", config: biased, tokens: []int{30, 0, 50}, twice: true})
	shared, adapted := small, small
	adapted.LoRARank, adapted.LoRAAlpha = 16, 8
	shared.SharedExperts, shared.SharedGate = 1, true
	scales := small
	scales.ExpertScale, scales.RouterBias = true, true
	list = append(list,
		testCase{name: "shared, added", config: shared, tokens: []int{30, 0, 50}, twice: true},
		testCase{name: "expert scales, added", config: scales, tokens: []int{30, 0, 50}, twice: true},
		testCase{name: "adapter, added", config: adapted, tokens: []int{30, 0, 50}, twice: true},
		testCase{name: "losses", config: shared, tokens: []int{30, 0, 51, 9}, losses: moe.Losses{Balance: 0.5, ZLoss: 0.25}},
		testCase{name: "balance of sequences", config: small, tokens: []int{30, 0, 51, 9}, losses: moe.Losses{Balance: 0.5, Sequence: 15}},
		testCase{name: "losses and router bias", config: biased, tokens: []int{0, 40, 7, 8}, losses: moe.Losses{Balance: 0.5}, twice: true},
		testCase{name: "shared, a rank without experts' rows", config: moe.Config{Hidden: 16, Intermediate: 16, NumExperts: 10, TopK: 1, SharedExperts: 1}, tokens: []int{1, 0, 0}},
		testCase{name: "losses alone", config: small, tokens: []int{0, 40, 0, 8}, losses: moe.Losses{Sequence: 48}},
	)
	alone := []string{"packed", "adapter"} // -short leaves these layers out: another layer has both properties
	for name, change := range map[string]func(c *moe.Config){
		"sigmoid, fp16": func(c *moe.Config) {
			c.Type, c.Logits, c.Score, c.SelectionBias = spec.F16, spec.F32, spec.Sigmoid, true
		},
		"biases, softmax over all, apart": func(c *moe.Config) { c.Bias, c.Score, c.GateUp = true, spec.SoftmaxAll, spec.Apart },
		"packed": func(c *moe.Config) {
			*c = moe.Config{Hidden: 160, Intermediate: 96, NumExperts: 9, TopK: 3, Weights: "mxfp4"}
		},
		"no gate, scaled, router in f32": func(c *moe.Config) {
			c.Activation, c.ScoreScale, c.RouterF32, c.Logits = "relu2", 2.5, true, spec.F32
		},
		"adapter":                       func(c *moe.Config) { c.LoRARank, c.LoRAAlpha = 12, 24 },
		"router bias, softmax over all": func(c *moe.Config) { c.RouterBias, c.Score = true, spec.SoftmaxAll },
		"adapter over packed weights": func(c *moe.Config) {
			*c = moe.Config{Hidden: 160, Intermediate: 96, NumExperts: 9, TopK: 3, Weights: "mxfp4", LoRARank: 16, LoRAAlpha: 4, RSLoRA: true}
		},
		"shared, gate, softmax over all": func(c *moe.Config) {
			c.SharedExperts, c.SharedGate, c.Score, c.Activation, c.GateUp = 2, true, spec.SoftmaxAll, "gelu-tanh", ""
		},
		"expert scales, softmax over all": func(c *moe.Config) { c.ExpertScale, c.Score = true, spec.SoftmaxAll },
	} {
		if testing.Short() && slices.Contains(alone, name) {
			continue
		}
		c := small
		change(&c)
		tokens := []int{52, 0, 39, 45}
		if testing.Short() {
			tokens = tokens[:3]
		}
		list = append(list, testCase{name: name, config: c, tokens: tokens})
	}
	return list
}

// TestBackwardBits checks that all gradients have the same bits as on one device, for groups of
// every size, with and without gradients of the logits.
func TestBackwardBits(t *testing.T) {
	for i, c := range append(backwardCases(), randomCases(randomBackward, 1000, 2, 12)...) {
		t.Run(c.String(), func(t *testing.T) { backwardBits(t, c, c.chunks(i), i%3 == 1, i%2 == 0) })
	}
}

// TestSharedRanges checks the gradients of shared experts for a number of tokens for which one device
// sums over several ranges. One range has tokens of three ranks.
func TestSharedRanges(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	c := testCase{config: moe.Config{Hidden: 16, Intermediate: 16, NumExperts: 3, TopK: 1, SharedExperts: 1, SharedGate: true}, tokens: []int{16390, 5, 8300}}
	backwardBits(t, c, 0, false, false)
	if drivertest.Name() != "emulated" {
		c.config.Hidden, c.config.Intermediate, c.config.NumExperts, c.config.TopK = 1024, 512, 16, 4
		c.tokens, c.losses = []int{9000, 8100}, moe.Losses{Balance: 0.5, ZLoss: 0.25, Sequence: 4275}
		backwardBits(t, c, 0, false, true)
	}
}

// randomBackward returns a layer with random sizes, shared experts and losses.
func randomBackward(seed uint64) testCase {
	c, r := random(seed), rand.New(rand.NewPCG(seed, 40))
	c.change = nil // Backward needs experts that the router has chosen
	c.config.SharedExperts = r.IntN(3)
	c.config.SharedGate = c.config.SharedExperts > 0 && r.IntN(2) == 0
	c.config.RouterBias = r.IntN(4) == 0
	c.config.ExpertScale = r.IntN(3) == 0
	if r.IntN(2) == 0 {
		c.losses = moe.Losses{Balance: r.Float32(), ZLoss: r.Float32() * float32(r.IntN(2))}
		for _, length := range r.Perm(c.total() + 1) {
			if length > 0 && c.total()%length == 0 && r.IntN(2) == 0 {
				c.losses.Sequence = length
				break
			}
		}
	}
	return c
}

// backwardBits compares the gradients of a group with the gradients of one device.
func backwardBits(t *testing.T, c testCase, chunks int, extra, f32 bool) {
	tr, modes := c.oneGPUBackward(t, extra, f32)
	want, err := c.wanted(tr)
	require.NoError(t, err)
	members, results := backwardOf(t, c, tr, Options{Chunks: chunks, Layer: modes})
	from := 0
	for i, m := range members {
		n := c.tokens[i]
		require.Equal(t, cut(want.dx, from*c.config.Hidden, n*c.config.Hidden), results[i].dx, "DX of rank %d", i)
		require.Equal(t, cut(want.dscores, from*c.config.TopK, n*c.config.TopK), results[i].dscores, "DScores of rank %d", i)
		require.Equal(t, want.losses, results[i].losses, "RouterLosses on rank %d", i)
		for id, v := range want.weights {
			own := trial.Values{Type: v.Type, Bits: own(m.Rank, id, v.Bits), F32: own(m.Rank, id, v.F32)}
			require.Equal(t, own, results[i].weights[id], "gradient of %v on rank %d", id, i)
		}
		from += n
	}
}

// oneGPUBackward runs both passes with all tokens on one device, and returns the modes of gradients that the ranks need.
// extra adds gradients of the logits. f32 makes the gradients of weights FP32.
func (c testCase) oneGPUBackward(t *testing.T, extra, f32 bool) (*trial.Trial, []moe.Option) {
	devs, err := devices()
	require.NoError(t, err)
	of := c.config.Normal().Type
	if f32 || c.twice {
		of = moe.F32
	}
	modes := []moe.Option{moe.WithGradients(of, false)} // the layers have no kernels for other modes
	if c.twice {
		modes = append(modes, moe.WithGradients(of, true))
	}
	l, err := moe.New(context.Background(), devs[0], c.config, append(modes, moe.WithoutCache(), moe.WithoutDecode())...)
	require.NoError(t, err)
	tr, err := trial.New(devs[0], l, c.total(), 1, 6)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	hasLosses := c.losses != moe.Losses{}
	if hasLosses && tr.Args.Logits.IsZero() {
		tr.Args.Logits = tr.Memory().Tensor(l.Config().Shapes(c.total()).Logits)
		require.NoError(t, tr.Memory().Err())
	}
	require.NoError(t, tr.Run(context.Background(), tr.Args))
	require.NoError(t, tr.PrepareBackward(3, of))
	if extra {
		require.NoError(t, tr.AddLogitGradients(5))
	}
	tr.Back.Logits = tr.Args.Logits
	if hasLosses {
		dlogits := tr.Back.DLogits
		tr.Back.Losses = c.losses
		tr.Back.DLogits, tr.Back.RouterLosses = dlogits, tr.Memory().Tensor(c.config.Normal().Gradients(0, moe.F32).RouterLosses)
		require.NoError(t, tr.Memory().Err())
	}
	require.NoError(t, tr.RunBackward(context.Background(), tr.Back))
	return tr, modes
}

// wanted returns the gradients of one device. Those of weights are doubled if the group makes two passes.
func (c testCase) wanted(tr *trial.Trial) (g gradients, err error) {
	read := func(of moe.Tensor) trial.Values {
		v, failed := tr.Rows(of, 1, nil)
		err = errors.Join(err, failed)
		return v
	}
	g = gradients{dx: read(tr.Back.DX), dscores: read(tr.Back.DScores), weights: map[moe.TensorID]trial.Values{}}
	if !tr.Back.RouterLosses.IsZero() {
		g.losses = read(tr.Back.RouterLosses)
	}
	for _, id := range moe.WeightIDs() {
		if of := tr.Back.Gradient(id); of != nil && !of.IsZero() {
			g.weights[id] = read(of.Tensor)
			for i := range g.weights[id].F32 {
				if c.twice {
					g.weights[id].F32[i] *= 2
				}
			}
		}
	}
	return g, err
}

// cut returns n values of v. The first one has the index `from`.
func cut(v trial.Values, from, n int) trial.Values {
	part := trial.Values{Type: v.Type}
	if v.F32 != nil {
		part.F32 = v.F32[from : from+n]
	} else {
		part.Bits = v.Bits[from : from+n]
	}
	return part
}

// gradients are the results of a backward pass, copied to the host.
type gradients struct {
	dx, dscores, losses trial.Values
	weights             map[moe.TensorID]trial.Values
}

// backward runs a forward pass that saves, and its backward pass, on poisoned memory.
func (m *member) backward(tr *trial.Trial, from, tokens int, twice bool) (*gradients, error) {
	outputs, err := m.prepareBackward(tr, from, tokens)
	b, ctx := &m.back, context.Background()
	for _, step := range []func() error{
		func() error { return m.Forward(ctx, m.stream, m.args) },
		func() (err error) { // Backward gets the counts as words
			b.Saved, err = m.Restore(m.args.Saved.Buffer, m.args.Saved.Counts())
			return err
		},
		func() (err error) {
			for _, t := range outputs {
				err = errors.Join(err, m.stream.Fill32(t.Ptr, 0xffffffff, t.Shape.Bytes()/4))
			}
			return err
		},
		func() error { return m.Backward(ctx, m.stream, *b) },
		func() error {
			if !twice {
				return nil
			}
			for id := range m.WeightShapes() {
				if g := b.Gradient(id); g != nil && !g.IsZero() {
					g.Accumulate = true
				}
			}
			return m.Backward(ctx, m.stream, *b)
		},
		m.checkSpans,
	} {
		if err == nil {
			err = step()
		}
	}
	if err != nil {
		return nil, err
	}
	return m.gradients()
}

// prepareBackward allocates the buffers of a backward pass in m.back, copies the gradients of the outputs from the
// trial, and poisons all else. It returns the outputs.
func (m *member) prepareBackward(tr *trial.Trial, from, tokens int) (outputs []moe.Tensor, err error) {
	sizes, err := m.Sizes()
	if err != nil {
		return nil, err
	}
	c, mem := m.Config, m.memory
	s, of := c.Shapes(tokens), c.Gradients(tokens, tr.Back.DW1.Shape.Type)
	saved := &Saved{Buffer: mem.Buffer(sizes.Saved)}
	if m.transport.Rank()%2 == 0 { // in exact memory, which the pass asks for
		saved = &Saved{Allocate: func(bytes int64) (moe.Buffer, error) {
			if bytes > sizes.Saved {
				return moe.Buffer{}, fmt.Errorf("%d bytes are more than Sizes.Saved, %d", bytes, sizes.Saved)
			}
			b := mem.Buffer(bytes)
			return b, errors.Join(mem.Err(), m.stream.Fill32(b.Ptr, 0xffffffff, b.Bytes/4))
		}}
	}
	m.args.Saved = saved
	m.Trace(true)
	if !tr.Back.Logits.IsZero() {
		m.args.Logits = mem.Tensor(s.Logits)
	}
	b := BackwardArgs{X: m.args.X, Weights: m.args.Weights, Scores: m.args.Scores, ExpertIDs: m.args.ExpertIDs, Logits: m.args.Logits, Saved: saved, Losses: tr.Back.Losses,
		DO: mem.Tensor(of.DO), DX: mem.Tensor(of.DX), DScores: mem.Tensor(of.DScores), Workspace: mem.Buffer(sizes.BackwardWorkspace)}
	outputs = []moe.Tensor{b.DX, b.DScores}
	for id, shape := range m.WeightShapes() {
		if g := tr.Back.Gradient(id); g != nil && !g.IsZero() {
			shape.Type = g.Shape.Type
			b.Gradient(id).Tensor = mem.Tensor(shape)
			outputs = append(outputs, b.Gradient(id).Tensor)
		}
	}
	if tr.Extra != nil {
		b.DLogits = mem.Tensor(of.DLogits)
	}
	if !b.RouterLosses.IsZero() {
		b.RouterLosses = mem.Tensor(of.RouterLosses)
		outputs = append(outputs, b.RouterLosses)
	}
	m.back = b
	err = errors.Join(mem.Err(), m.stream.Fill32(b.Workspace.Ptr, 0xffffffff, b.Workspace.Bytes/4), moe.Write(m.stream, b.DO, tr.DO[from*c.Hidden:(from+tokens)*c.Hidden]))
	if tr.Extra != nil {
		err = errors.Join(err, moe.Write(m.stream, b.DLogits, tr.Extra[from*c.NumExperts:(from+tokens)*c.NumExperts]))
	}
	if saved.Allocate == nil {
		err = errors.Join(err, m.stream.Fill32(saved.Ptr, 0xffffffff, saved.Bytes/4))
	}
	return outputs, err
}

// gradients copies the results of the last backward pass to the host.
func (m *member) gradients() (g *gradients, err error) {
	b := &m.back
	g = &gradients{weights: map[moe.TensorID]trial.Values{}}
	for _, r := range []struct {
		of moe.Tensor
		to *trial.Values
	}{{b.DX, &g.dx}, {b.DScores, &g.dscores}, {b.RouterLosses, &g.losses}} {
		if r.of.IsZero() {
			continue
		}
		if *r.to, err = m.values(r.of); err != nil {
			return nil, err
		}
	}
	for id := range m.WeightShapes() {
		if d := b.Gradient(id); d != nil && !d.IsZero() {
			if g.weights[id], err = m.values(d.Tensor); err != nil {
				return nil, fmt.Errorf("reading the gradient of %v: %w", id, err)
			}
		}
	}
	return g, nil
}

// checkSpans checks that no two spans of the last pass have the same name and chunk.
func (m *member) checkSpans() error {
	spans, err := m.Spans(context.Background(), m.stream)
	seen := map[Step]bool{}
	for _, s := range spans {
		of := Step{s.Name, s.Chunk}
		if seen[of] {
			return fmt.Errorf("two spans have the name %q and chunk %d", s.Name, s.Chunk)
		}
		seen[of] = true
	}
	return err
}

// values copies a tensor to the host.
func (m *member) values(of moe.Tensor) (v trial.Values, err error) {
	v.Type = of.Shape.Type
	if v.Type == moe.F32 {
		v.F32 = make([]float32, of.Shape.Elements())
		return v, moe.Read(m.stream, of, v.F32)
	}
	v.Bits = make([]uint16, of.Shape.Elements())
	return v, moe.Read(m.stream, of, v.Bits)
}
