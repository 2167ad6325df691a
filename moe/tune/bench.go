package tune

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"sonicmoe/autotune"
	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/open"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
)

// task describes what a bench tunes: a layer, its routing and the device. A worker process receives
// the task as text.
type task struct {
	// Device is the name by which a worker opens its device. The opened device must match Target.
	Device string
	Target driver.Target
	Config moe.Config
	// Histogram, unless nil, has a number for each expert. Experts get rows in proportion to these
	// numbers.
	Histogram []int64
	// Backward reports whether the products of backward are tuned too.
	Backward bool
}

var layers = autotune.NewSubject("moe layer", newBench)

// bench runs layers with candidate tilings on one set of tensors.
type bench struct {
	task
	kernels       registry.Registry
	setting       autotune.Setting
	dev           driver.Device
	ours          bool // the bench has opened the device itself
	trial         *trial.Trial
	fingerprinter *fingerprinter
	// wide is memory for the largest gradient of a weight in FP32.
	wide  driver.DevicePtr
	owned []driver.DevicePtr
	// base is the layer with the cost model's tilings.
	base *candidate
	// want has the checksums of the outputs of base, by run and tensor. inputs has the checksums of
	// the tensors that no kernel may change.
	want       map[string]checksum
	inputs     map[spec.TensorID]checksum
	candidates map[tiles.Choice]*candidate
	spans      [repeats]span
}

// candidate is a layer with a candidate tiling, and a call of the layer.
type candidate struct {
	layer *moe.Layer
	call  *moe.Call
}

const seed = 7

func newBench(ctx context.Context, s autotune.Setting) (autotune.Bench[gemm.Tiling], error) {
	b := &bench{kernels: kernel.Kernels, setting: s, dev: s.Device, want: map[string]checksum{}, inputs: map[spec.TensorID]checksum{}, candidates: map[tiles.Choice]*candidate{}}
	if err := json.Unmarshal(s.Spec, &b.task); err != nil {
		return nil, err
	}
	if err := b.open(ctx); err != nil {
		return nil, err
	}
	if err := b.prepare(ctx); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// open opens a worker's own device.
func (b *bench) open(ctx context.Context) (err error) {
	if b.dev != nil {
		return nil
	}
	if b.task.Device == "emulated" {
		b.dev, err = emulated.New(emulated.Options{Target: b.Target, Context: ctx})
	} else {
		b.dev, err = open.Device(ctx, b.task.Device)
	}
	if err != nil {
		return err
	}
	b.ours = true
	if t := b.dev.Target(); t != b.Target {
		return fmt.Errorf("the device %q is %s with %d SMs, the layer's is %s with %d: name it in Options.Device",
			b.task.Device, t.Name, t.SMs, b.Target.Name, b.Target.SMs)
	}
	return nil
}

// prepare creates the cost model's layer and the tensors.
func (b *bench) prepare(ctx context.Context) error {
	var err error
	if b.base, err = b.candidate(ctx, tiles.Choice{}); err != nil {
		return err
	}
	tokens := tokensOf(b.Config)
	// If d is small, weights must be larger for outputs of order 1.
	boost := max(1, math.Sqrt(1536/float64(b.Config.Hidden)))
	if b.trial, err = trial.New(b.dev, b.base.layer, tokens, seed, boost); err != nil {
		return err
	}
	if b.Histogram != nil {
		if err := b.route(tokens); err != nil {
			return err
		}
	}
	if b.Backward {
		if err := b.trial.PrepareBackward(seed+10, b.Config.Type); err != nil {
			return err
		}
		s := b.Config.Gradients(tokens, moe.F32)
		first := s.DW1.Bytes()
		if b.Config.GateUp == spec.Apart {
			first += s.DW3.Bytes()
		}
		if first > 0 { // packed weights have no gradients
			if b.wide, err = b.alloc(max(first, s.DW2.Bytes())); err != nil {
				return err
			}
		}
	}
	for i := range b.spans {
		for j := range b.spans[i] {
			if b.spans[i][j], err = b.dev.NewEvent(); err != nil {
				return err
			}
		}
	}
	sums, err := b.alloc(checksumBytes)
	if err != nil {
		return err
	}
	if b.fingerprinter, err = newFingerprinter(ctx, b.dev, b.setting.Cache, b.trial.Stream(), sums); err != nil {
		return err
	}
	if err := b.prove(ctx); err != nil {
		return fmt.Errorf("the cost model's layer: %w", err)
	}
	return nil
}

// candidate returns the layer with the tilings of choice, and with the cost model's tilings for
// other products.
func (b *bench) candidate(ctx context.Context, choice tiles.Choice) (*candidate, error) {
	if a := b.candidates[choice]; a != nil {
		return a, nil
	}
	// Without this option, small batches would use kernels that have no tilings.
	opts := []moe.Option{moe.WithoutTuning(), moe.WithTilings(choice.Text()), moe.WithoutDecode()}
	if b.setting.Cache != nil {
		opts = append(opts, moe.WithCache(b.setting.Cache))
	} else {
		opts = append(opts, moe.WithoutCache())
	}
	if !b.Backward {
		opts = append(opts, moe.WithoutBackward())
	}
	l, err := moe.New(ctx, b.dev, b.Config, opts...)
	if err != nil {
		return nil, err
	}
	b.candidates[choice] = &candidate{l, l.NewCall()}
	return b.candidates[choice], b.room(l)
}

// room makes the workspaces of the bench large enough for a layer.
func (b *bench) room(l *moe.Layer) error {
	if b.trial == nil {
		return nil
	}
	sizes, err := l.Sizes(b.trial.Tokens)
	if err != nil {
		return err
	}
	for _, w := range []struct {
		have *moe.Buffer
		need int64
	}{{&b.trial.Args.Workspace, sizes.Workspace}, {&b.trial.Back.Workspace, sizes.BackwardWorkspace}} {
		if w.have.Bytes >= w.need || w.have.Bytes == 0 {
			continue
		}
		p, err := b.alloc(w.need)
		if err != nil {
			return err
		}
		*w.have = moe.Buffer{Ptr: p, Bytes: w.need}
	}
	return nil
}

func (b *bench) alloc(bytes int64) (driver.DevicePtr, error) {
	p, err := b.dev.Alloc(bytes)
	if err == nil {
		b.owned = append(b.owned, p)
	}
	return p, err
}

// problem returns the candidate with a product's tiling, and the runs whose outputs depend on the
// product.
func (b *bench) problem(ctx context.Context, product string, p gemm.Tiling) (*candidate, []run, error) {
	id, err := spec.ParseProduct(product)
	if err != nil {
		return nil, nil, err
	}
	runs, err := b.runs(id)
	if err != nil {
		return nil, nil, err
	}
	a, err := b.candidate(ctx, tiles.Choice{}.With(id, p))
	return a, runs, err
}

// Verify implements autotune.Bench.
func (b *bench) Verify(ctx context.Context, product string, p gemm.Tiling) error {
	a, runs, err := b.problem(ctx, product, p)
	if err != nil {
		return err
	}
	for _, r := range runs {
		got, err := b.checksums(ctx, a, r)
		if err != nil {
			return err
		}
		for i, out := range r.outputs {
			name := r.Name + " " + out.id.String()
			want, known := b.want[name]
			if !known {
				if err := b.learn(ctx, r); err != nil {
					return err
				}
				want = b.want[name]
			}
			if got[i] != want {
				return fmt.Errorf("%s: %s has other bits than with the default tiles, which were right against float64", r.Name, out.id)
			}
		}
	}
	return b.sameInputs()
}

// learn stores the checksums of the outputs of a run with base, the cost model's layer.
func (b *bench) learn(ctx context.Context, r run) error {
	got, err := b.checksums(ctx, b.base, r)
	for i, out := range r.outputs {
		if err == nil {
			b.want[r.Name+" "+out.id.String()] = got[i]
		}
	}
	return err
}

// checksums fills the outputs of a run with the run's initial value, runs the pass, and returns the
// checksums of the outputs.
func (b *bench) checksums(ctx context.Context, a *candidate, r run) ([]checksum, error) {
	s := b.trial.Stream()
	for _, out := range r.outputs {
		if err := s.Fill32(out.Ptr, r.before, out.Shape.Bytes()/4); err != nil {
			return nil, err
		}
	}
	for _, w := range []moe.Buffer{b.trial.Args.Workspace, b.trial.Back.Workspace} {
		if err := s.Fill32(w.Ptr, 0xffffffff, w.Bytes/4); err != nil {
			return nil, err
		}
	}
	if err := r.do(a.call); err != nil {
		return nil, err
	}
	if err := a.layer.Explain(s.Synchronize(ctx)); err != nil {
		return nil, err
	}
	var list []checksum
	for _, out := range r.outputs {
		p, err := b.fingerprinter.sum(out.Tensor)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

// sameInputs returns an error if a kernel has changed an input.
func (b *bench) sameInputs() error {
	a, back := &b.trial.Args, &b.trial.Back
	tensors := []named{{spec.TensorX, a.X}}
	for _, id := range spec.Weights {
		tensors = append(tensors, named{id, *a.Weight(id)})
	}
	if b.Backward {
		tensors = append(tensors, named{spec.TensorDO, back.DO}, named{spec.TensorH, a.H},
			named{spec.TensorScores, a.Scores}, named{spec.TensorExpertIDs, a.ExpertIDs})
	}
	for _, t := range tensors {
		if t.IsZero() {
			continue // the layer does not have this tensor
		}
		p, err := b.fingerprinter.sum(t.Tensor)
		if err != nil {
			return err
		}
		if was, ok := b.inputs[t.id]; ok && was != p {
			return fmt.Errorf("the pass changed %s, which is an input", t.id)
		}
		b.inputs[t.id] = p
	}
	return nil
}

// Close implements autotune.Bench.
func (b *bench) Close() error {
	if b.ours {
		jit.Forget(b.dev)
		return b.dev.Close()
	}
	for _, around := range b.spans {
		for _, e := range around {
			if e != nil {
				_ = e.Close() // if the device is broken, Free or Close reports it
			}
		}
	}
	for _, p := range b.owned {
		_ = b.dev.Free(p)
	}
	if b.trial == nil {
		return nil
	}
	return b.trial.Close()
}
