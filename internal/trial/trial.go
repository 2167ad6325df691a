// Package trial runs a layer on random tensors and compares the results with the
// float64 reference, for tests, tuning and benchmarks.
package trial

import (
	"context"
	"errors"
	"slices"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// scaleBias is the standard deviation of random biases.
const scaleBias = 0.3

// Trial holds the tensors of a layer on the host and on the device.
type Trial struct {
	Layer  *moe.Layer
	Tokens int
	// X and Weights are the inputs on the host. 16-bit values are bits of the layer's Type.
	X []uint16
	reference.Weights
	// Args holds the inputs on the device, the outputs and the workspace.
	Args moe.ForwardArgs
	// DO is the gradient of O, as bits of the layer's Type. Extra holds the gradients of the
	// logits that come from DLogits, Balance and ZLoss. Back holds the tensors of a backward
	// pass; PrepareBackward sets it.
	DO    []uint16
	Extra []float32
	Back  moe.BackwardArgs

	dev    driver.Device
	stream driver.Stream
	call   *moe.Call
	memory *moe.Arena
}

// New draws random inputs with [Draw] and copies them to the layer's device.
func New(dev driver.Device, l *moe.Layer, tokens int, seed uint64, boost float64) (*Trial, error) {
	x, w := Draw(l.Config(), tokens, seed, boost)
	return FromHost(dev, l, tokens, x, w)
}

// Draw returns random tokens X and weights. Their standard deviations are constants of package
// reference. boost multiplies the deviation of the weights, because small layers need larger
// weights to reach outputs of order 1.
func Draw(c moe.Config, tokens int, seed uint64, boost float64) (x []uint16, w reference.Weights) {
	c.Weights = ""
	s := c.Shapes(tokens)
	for i, id := range drawn() {
		if spec.Row(id).IsOnlyPacked() {
			continue
		}
		seed, scale, mean := seed+1+uint64(i), reference.ScaleWeight*boost, 0.0
		switch id {
		case spec.TensorB1, spec.TensorB3, spec.TensorB2, spec.TensorRouterBias:
			scale = scaleBias
		case spec.TensorSelectionBias:
			scale = scaleBias / float64(c.NumExperts)
		case spec.TensorExpertScale:
			scale, mean = scaleBias, 1
		}
		if bits := w.Bits(id); bits != nil {
			*bits = reference.NewNormalOf(s.Of(id).Type, seed, scale).Values(s.Of(id).Elements())
		} else {
			*w.F32(id) = numbers(seed, scale, mean, s.Of(id))
		}
	}
	if c.RouterF32 {
		off := reference.NewNormalOf(s.Router.Type, seed+15, reference.ScaleWeight*boost).Values(s.Router.Elements())
		w.Router, w.RouterF32 = nil, wide(w.Router, off)
	}
	return reference.NewNormalOf(s.X.Type, seed, reference.ScaleX).Values(s.X.Elements()), w
}

// drawn returns the ids of the weights in the order in which Draw draws them. Append new ids at
// the end, because the seed of a weight follows from its position.
func drawn() []spec.TensorID {
	ids := []spec.TensorID{spec.TensorRouter, spec.TensorW1, spec.TensorW2, spec.TensorW3, spec.TensorB1, spec.TensorB3, spec.TensorB2,
		spec.TensorSharedW1, spec.TensorSharedW3, spec.TensorSharedW2, spec.TensorSharedGate,
		spec.TensorRouterBias, spec.TensorSelectionBias, spec.TensorExpertScale}
	for _, id := range spec.Weights {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// wide returns FP32 numbers near the 16-bit numbers of, with more fraction bits than a 16-bit
// type has. The extra bits come from off.
func wide(of, off []uint16) []float32 {
	list := make([]float32, len(of))
	for i := range list {
		list[i] = float32(num.BF16ToFloat64(of[i]) + num.BF16ToFloat64(off[i])/300)
	}
	return list
}

// numbers returns random FP32 numbers around a mean, as many as a tensor of the shape has. It
// returns none for the zero Shape.
func numbers(seed uint64, scale, mean float64, of moe.Shape) (list []float32) {
	for _, v := range reference.NewNormal(seed, scale).Values(of.Elements()) {
		list = append(list, float32(mean+num.BF16ToFloat64(v)))
	}
	return list
}

// FromHost returns a trial with the given inputs, copied to the device.
func FromHost(dev driver.Device, l *moe.Layer, tokens int, x []uint16, w reference.Weights) (*Trial, error) {
	t, err := Allocate(dev, l, tokens)
	if err != nil {
		return nil, err
	}
	t.X, t.Weights = x, w
	if err := t.upload(); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// Allocate returns a trial without inputs on the host and without a workspace. The tensors on
// the device have unspecified contents. Such a trial serves to measure a layer.
func Allocate(dev driver.Device, l *moe.Layer, tokens int) (*Trial, error) {
	t := &Trial{Layer: l, Tokens: tokens, dev: dev, call: l.NewCall(), memory: moe.NewArena(dev)}
	if err := t.allocate(); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

func (t *Trial) allocate() (err error) {
	if t.stream, err = t.dev.NewStream(); err != nil {
		return err
	}
	t.Args = t.memory.ForwardArgs(t.Layer, t.Tokens)
	if t.Args.H.IsZero() {
		s := t.Layer.Shapes(t.Tokens)
		t.Args.H, t.Args.SharedH = t.memory.Tensor(s.H), t.memory.Tensor(s.SharedH)
	}
	if t.Args.Logits.IsZero() && judgedByLogits(t.Layer.Config()) {
		t.Args.Logits = t.memory.Tensor(t.Layer.Shapes(t.Tokens).Logits)
	}
	t.Args.Weights = t.memory.Weights(t.Layer)
	return t.memory.Err()
}

func (t *Trial) upload() error {
	sizes, err := t.Layer.Sizes(t.Tokens)
	if err != nil {
		return err
	}
	t.Args.Workspace = t.memory.Buffer(sizes.Workspace)
	if err := t.memory.Err(); err != nil {
		return err
	}
	if err := write(t.stream, t.Args.X, t.X); err != nil {
		return err
	}
	if err := t.pack(); err != nil {
		return err
	}
	for _, id := range spec.Weights {
		to := *t.Args.Weight(id)
		if to.Shape.Type == moe.U8 || spec.Row(id).IsOnlyPacked() {
			continue // pack has written this tensor already
		}
		if bits := t.Weights.Bits(id); bits != nil {
			if err := write(t.stream, to, *bits); err != nil {
				return err
			}
		}
		if f32 := t.Weights.F32(id); f32 != nil {
			if err := write(t.stream, to, *f32); err != nil {
				return err
			}
		}
	}
	return nil
}

// write copies values to a tensor. It does nothing if there are no values.
func write[E uint16 | float32](s driver.Stream, to moe.Tensor, from []E) error {
	if len(from) == 0 {
		return nil
	}
	return moe.Write(s, to, from)
}

// Memory returns the arena of the trial's tensors on the device.
func (t *Trial) Memory() *moe.Arena { return t.memory }

// Stream returns the trial's stream.
func (t *Trial) Stream() driver.Stream { return t.stream }

// Call returns the trial's call.
func (t *Trial) Call() *moe.Call { return t.call }

// UseCall sets the trial's call to another call of the layer.
func (t *Trial) UseCall(c *moe.Call) { t.call = c }

// Poison overwrites the outputs and the workspace with NaN.
func (t *Trial) Poison() error {
	for _, b := range []struct {
		p     driver.DevicePtr
		bytes int64
	}{
		{t.Args.O.Ptr, t.Args.O.Shape.Bytes()}, {t.Args.H.Ptr, t.Args.H.Shape.Bytes()}, {t.Args.SharedH.Ptr, t.Args.SharedH.Shape.Bytes()}, {t.Args.LoraU.Ptr, t.Args.LoraU.Shape.Bytes()},
		{t.Args.Scores.Ptr, t.Args.Scores.Shape.Bytes()}, {t.Args.ExpertIDs.Ptr, t.Args.ExpertIDs.Shape.Bytes()},
		{t.Args.Workspace.Ptr, t.Args.Workspace.Bytes},
	} {
		if err := t.stream.Fill32(b.p, 0xffffffff, b.bytes/4); err != nil {
			return err
		}
	}
	return nil
}

// Inference returns Args without H, SharedH and LoraU, which only training needs.
func (t *Trial) Inference() moe.ForwardArgs {
	f := t.Args
	f.H, f.SharedH, f.LoraU = moe.Tensor{}, moe.Tensor{}, moe.Tensor{}
	return f
}

// Run poisons the outputs, runs a forward pass with the buffers of f, and waits for its end.
func (t *Trial) Run(ctx context.Context, f moe.ForwardArgs) error {
	if err := t.Poison(); err != nil {
		return err
	}
	if err := t.call.Forward(t.stream, f); err != nil {
		return err
	}
	return t.Layer.Explain(t.stream.Synchronize(ctx))
}

// Results are the outputs of a forward pass on the host.
type Results struct {
	O, H, SharedH []uint16
	Scores        []float32
	ExpertIDs     []int32
}

// Results copies the outputs to the host. It copies H and SharedH only if withH is true.
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
