// Package trial runs a layer on random tensors and holds the results against
// the float64 reference: the common ground of tests, examples and benchmarks.
package trial

import (
	"context"
	"errors"

	"sonicmoe/driver"
	"sonicmoe/internal/reference"
	"sonicmoe/moe"
	"sonicmoe/moe/num"
)

// Standard deviations of the random tensors.
const (
	ScaleX      = 0.5
	ScaleWeight = 0.02
	ScaleBias   = 0.3
)

// Trial is a layer's tensors on host and device.
type Trial struct {
	Layer  *moe.Layer
	Tokens int
	// X and Weights are the inputs, 16-bit ones as bits of the layer's Type.
	X []uint16
	reference.Weights
	// Args are the same tensors on the device, with outputs and workspace.
	Args moe.Forward
	// DO is the gradient of O as bits of the layer's Type, Extra the gradients of the logits that
	// do not come through the scores, by DLogits, Balance and ZLoss, and Back the tensors of a backward pass; see PrepareBackward.
	DO    []uint16
	Extra []float32
	Back  moe.Backward

	dev    driver.Device
	stream driver.Stream
	call   *moe.Call
	memory *moe.Arena
}

// New makes random inputs from a seed and puts them on the layer's device.
// The scales are those of the measuring rule, times boost for the weights:
// small layers need more to reach outputs of order 1.
func New(dev driver.Device, l *moe.Layer, tokens int, seed uint64, boost float64) (*Trial, error) {
	s := l.Config().Shapes(tokens)
	weight := func(seed uint64, of moe.Shape) []uint16 {
		return reference.NewNormalOf(of.Type, seed, ScaleWeight*boost).Values(of.Elements())
	}
	bias := func(seed uint64, of moe.Shape) []uint16 {
		return reference.NewNormalOf(of.Type, seed, ScaleBias).Values(of.Elements())
	}
	w := reference.Weights{
		W1: weight(seed+2, s.W1), W2: weight(seed+3, s.W2), W3: weight(seed+4, s.W3),
		B1: bias(seed+5, s.B1), B3: bias(seed+6, s.B3), B2: bias(seed+7, s.B2),
		SharedW1: weight(seed+8, s.SharedW1), SharedW3: weight(seed+9, s.SharedW3), SharedW2: weight(seed+10, s.SharedW2), SharedGate: weight(seed+11, s.SharedGate),
		RouterBias: numbers(seed+12, ScaleBias, 0, s.RouterBias), SelectionBias: numbers(seed+13, ScaleBias/float64(l.Config().NumExperts), 0, s.SelectionBias),
		ExpertScale: numbers(seed+14, ScaleBias, 1, s.ExpertScale),
	}
	if w.Router = weight(seed+1, s.Router); l.Config().RouterF32 {
		w.Router, w.RouterF32 = nil, wide(w.Router, weight(seed+15, s.Router))
	}
	return FromHost(dev, l, tokens, reference.NewNormalOf(s.X.Type, seed, ScaleX).Values(s.X.Elements()), w)
}

// wide are numbers with more of a fraction than 16 bits have, a little off some
// that have no more.
func wide(of, off []uint16) []float32 {
	list := make([]float32, len(of))
	for i := range list {
		list[i] = float32(num.BF16ToFloat64(of[i]) + num.BF16ToFloat64(off[i])/300)
	}
	return list
}

// numbers are those of experts around a mean, none where there is no shape.
func numbers(seed uint64, scale, mean float64, of moe.Shape) (list []float32) {
	for _, v := range reference.NewNormal(seed, scale).Values(of.Elements()) {
		list = append(list, float32(mean+num.BF16ToFloat64(v)))
	}
	return list
}

// FromHost puts given inputs on the device.
func FromHost(dev driver.Device, l *moe.Layer, tokens int, x []uint16, w reference.Weights) (*Trial, error) {
	t := &Trial{Layer: l, Tokens: tokens, X: x, Weights: w, dev: dev, call: l.NewCall(), memory: moe.NewArena(dev)}
	if err := t.upload(); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

func (t *Trial) upload() (err error) {
	if t.stream, err = t.dev.NewStream(); err != nil {
		return err
	}
	t.Args = t.memory.Forward(t.Layer, t.Tokens)
	if t.Args.H.IsZero() {
		s := t.Layer.Shapes(t.Tokens)
		t.Args.H, t.Args.SharedH = t.memory.Tensor(s.H), t.memory.Tensor(s.SharedH)
	}
	if t.Args.Logits.IsZero() && judgedByLogits(t.Layer.Config()) {
		t.Args.Logits = t.memory.Tensor(t.Layer.Shapes(t.Tokens).Logits)
	}
	t.Args.Weights = t.memory.Weights(t.Layer)
	sizes, err := t.Layer.Sizes(t.Tokens)
	if err != nil {
		return err
	}
	t.Args.Workspace = t.memory.Buffer(sizes.Workspace)
	if err := t.memory.Err(); err != nil {
		return err
	}
	for _, in := range []struct {
		to   moe.Tensor
		from []uint16
	}{{t.Args.X, t.X}, {t.Args.Router, t.Router}, {t.Args.W1, t.W1}, {t.Args.W3, t.W3}, {t.Args.W2, t.W2}, {t.Args.B1, t.B1}, {t.Args.B3, t.B3}, {t.Args.B2, t.B2},
		{t.Args.SharedW1, t.SharedW1}, {t.Args.SharedW3, t.SharedW3}, {t.Args.SharedW2, t.SharedW2}, {t.Args.SharedGate, t.SharedGate}} {
		if len(in.from) == 0 {
			continue
		}
		if err := moe.Write(t.stream, in.to, in.from); err != nil {
			return err
		}
	}
	for _, in := range []struct {
		to   moe.Tensor
		from []float32
	}{{t.Args.Router, t.RouterF32}, {t.Args.RouterBias, t.RouterBias}, {t.Args.SelectionBias, t.SelectionBias}, {t.Args.ExpertScale, t.ExpertScale}} {
		if len(in.from) == 0 {
			continue
		}
		if err := moe.Write(t.stream, in.to, in.from); err != nil {
			return err
		}
	}
	return nil
}

// Stream is the trial's own stream, Call its call.
func (t *Trial) Stream() driver.Stream { return t.stream }

// Call is the trial's call.
func (t *Trial) Call() *moe.Call { return t.call }

// UseCall makes another call of the layer the trial's.
func (t *Trial) UseCall(c *moe.Call) { t.call = c }

// Poison overwrites outputs and workspace with NaN.
func (t *Trial) Poison() error {
	for _, b := range []struct {
		p     driver.DevicePtr
		bytes int64
	}{
		{t.Args.O.Ptr, t.Args.O.Shape.Bytes()}, {t.Args.H.Ptr, t.Args.H.Shape.Bytes()}, {t.Args.SharedH.Ptr, t.Args.SharedH.Shape.Bytes()},
		{t.Args.Scores.Ptr, t.Args.Scores.Shape.Bytes()}, {t.Args.ExpertIDs.Ptr, t.Args.ExpertIDs.Shape.Bytes()},
		{t.Args.Workspace.Ptr, t.Args.Workspace.Bytes},
	} {
		if err := t.stream.Fill32(b.p, 0xffffffff, b.bytes/4); err != nil {
			return err
		}
	}
	return nil
}

// Inference is Args without H.
func (t *Trial) Inference() moe.Forward {
	f := t.Args
	f.H, f.SharedH = moe.Tensor{}, moe.Tensor{}
	return f
}

// Run poisons the outputs, runs the pass with the given buffers and waits.
func (t *Trial) Run(ctx context.Context, f moe.Forward) error {
	if err := t.Poison(); err != nil {
		return err
	}
	if err := t.call.Forward(t.stream, f); err != nil {
		return err
	}
	return t.Layer.Explain(t.stream.Synchronize(ctx))
}

// Results are a pass's outputs on the host.
type Results struct {
	O, H, SharedH []uint16
	Scores        []float32
	ExpertIDs     []int32
}

// Results copies the outputs; H and SharedH only if asked for.
func (t *Trial) Results(withH bool) (Results, error) {
	s := t.Layer.Config().Shapes(t.Tokens)
	r := Results{
		O: make([]uint16, s.O.Elements()), Scores: make([]float32, s.Scores.Elements()), ExpertIDs: make([]int32, s.ExpertIDs.Elements()),
	}
	if withH {
		r.H = make([]uint16, s.H.Elements())
	}
	for _, err := range []error{
		moe.Read(t.stream, t.Args.O, r.O), moe.Read(t.stream, t.Args.Scores, r.Scores), moe.Read(t.stream, t.Args.ExpertIDs, r.ExpertIDs),
	} {
		if err != nil {
			return r, err
		}
	}
	if !withH {
		return r, nil
	}
	if !t.Args.SharedH.IsZero() {
		r.SharedH = make([]uint16, s.SharedH.Elements())
		if err := moe.Read(t.stream, t.Args.SharedH, r.SharedH); err != nil {
			return r, err
		}
	}
	return r, moe.Read(t.stream, t.Args.H, r.H)
}

// Close frees the device memory.
func (t *Trial) Close() error {
	err := t.memory.Free()
	if t.stream != nil {
		err = errors.Join(err, t.stream.Close())
		t.stream = nil
	}
	return err
}
