package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/modelcard"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint"
	"sonicmoe/moe/checkpoint/weights"
)

// source is a layer that the service offers. Its weights are not on the device yet.
type source struct {
	number int // number of the layer in its model, or 0 without a model
	config moe.Config
	// model is the model_type of the model, or "" for random weights. remarks are remarks on
	// the model's config.json.
	model   string
	remarks []string
	// load copies the weights to the device. close closes the model's files.
	load  func(ctx context.Context, s driver.Stream, w moe.Weights) error
	close func() error
}

// name returns the model_type of the layer, or says that its weights are random.
func (s source) name() string { return cmp.Or(s.model, "random weights") }

// randomSource returns a layer with random weights.
func randomSource(c moe.Config) source {
	load := func(_ context.Context, s driver.Stream, w moe.Weights) error {
		for i, t := range []moe.Tensor{w.Router, w.W1, w.W2} {
			random, in := rand.New(rand.NewPCG(1, uint64(i))), t.Shape.Dims[t.Shape.Rank-1]
			values := make([]float32, t.Shape.Elements())
			for j := range values {
				values[j] = float32(random.NormFloat64() / math.Sqrt(float64(in)))
			}
			if err := moe.Write(s, t, values); err != nil {
				return err
			}
		}
		return nil
	}
	return source{config: c, load: load, close: func() error { return nil }}
}

// allLayers is the value of -layer for all layers with experts.
const allLayers = "all"

// openModel finds layers of the model in a folder: the layers that the parameter list names, or the
// first layer with experts if list is empty. It reads no weights.
func openModel(ctx context.Context, dir, list string, tokens int) (found []source, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(found))
			found = nil
		}
	}()
	numbers, err := parseLayers(list)
	if err != nil {
		return nil, err
	}
	if len(numbers) == 0 {
		if numbers, err = withExperts(ctx, dir); err != nil {
			return nil, err
		}
		if list != allLayers {
			numbers = numbers[:1]
		}
	}
	for _, number := range numbers {
		l, err := weights.Open(ctx, dir, number)
		if err != nil {
			return found, err
		}
		c := l.Config
		c.TokensHint = tokens
		found = append(found, source{number, c, l.Model.Type, modelcard.Remarks(l.Model), l.Load, l.Close})
		if out := l.Model.Outside; len(out) > 0 {
			return found, fmt.Errorf("%s: this model's block is more than a layer: %s; examples/layer runs its experts alone", dir, strings.Join(out, "; "))
		}
		if err := moe.Check(c); err != nil {
			return found, fmt.Errorf("%s: layer %d, %v: %w", dir, number, c, err)
		}
	}
	return found, nil
}

// withExperts returns the numbers of the model's layers with experts, of which there is at least one.
func withExperts(ctx context.Context, dir string) ([]int, error) {
	_, data, err := command.ReadConfig(ctx, dir)
	if err != nil {
		return nil, err
	}
	model, err := checkpoint.Read(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if len(model.MoE) == 0 {
		return nil, fmt.Errorf("%s: config.json has no layer with experts", dir)
	}
	return model.MoE, nil
}

func closeAll(list []source) error {
	var errs []error
	for _, s := range list {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}

// maxLayers is the largest number of layers in -layer. No published model has more.
const maxLayers = 1024

// parseLayers reads a list such as "3", "0,2" or "0-3,7". It returns none for allLayers and for an
// empty list.
func parseLayers(list string) (numbers []int, err error) {
	if list == "" || list == allLayers {
		return nil, nil
	}
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, wrong := strconv.Atoi(first)
		to, alsoWrong := strconv.Atoi(last)
		if wrong != nil || alsoWrong != nil || from < 0 || to < from || to >= maxLayers {
			return nil, command.Usagef("-layer %s: %q must be a number or a range such as 0-3, below %d", list, part, maxLayers)
		}
		for n := from; n <= to; n++ {
			if slices.Contains(numbers, n) {
				return nil, command.Usagef("-layer %s: %d is named twice", list, n)
			}
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

// loader returns a function that compiles the layers and loads their weights. Layers with equal
// Configs share their kernels.
func loader(dev driver.Device, list []source, kept *cache.Cache, o batching) func(context.Context) ([]*batcher, error) {
	return func(ctx context.Context) (done []*batcher, err error) {
		made := map[moe.Config]*moe.Layer{}
		defer func() {
			err = errors.Join(err, closeAll(list))
			if err != nil {
				err = errors.Join(err, closeBatchers(done))
				done = nil
			}
		}()
		for _, s := range list {
			layer := made[s.config]
			if layer == nil {
				if layer, err = moe.New(ctx, dev, s.config, moe.WithoutBackward(), moe.WithCache(kept)); err != nil {
					return done, err
				}
				made[s.config] = layer
			}
			b, err := newBatcher(ctx, dev, layer, s, o)
			if err != nil {
				return done, err
			}
			done = append(done, b)
		}
		return done, nil
	}
}

// arrange makes a second copy of a layer's packed weights in an order for small batches. It returns
// no buffer for plain weights. If a code or a scale does not fit this order, it returns no buffer and
// a remark: passes over all batches then read the weights in their usual order.
func arrange(layer *moe.Layer, call *moe.Call, stream driver.Stream, memory *moe.Arena, w moe.Weights) (units moe.Buffer, remark string, err error) {
	sizes, err := layer.Sizes(1)
	if err != nil || sizes.Units == 0 {
		return units, "", err
	}
	units = memory.Buffer(sizes.Units)
	if err := memory.Err(); err != nil {
		return moe.Buffer{}, "", err
	}
	err = call.Arrange(stream, w, units)
	if refused := (*moe.ArgError)(nil); errors.As(err, &refused) {
		return moe.Buffer{}, "small batches are slower than they could be: " + err.Error(), nil
	}
	return units, "", err
}

func closeBatchers(list []*batcher) error {
	var errs []error
	for _, b := range list {
		errs = append(errs, b.close())
	}
	return errors.Join(errs...)
}
