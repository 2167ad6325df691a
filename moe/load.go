package moe

import (
	"cmp"
	"context"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"sonicmoe/jit"
	"sonicmoe/moe/internal/emit"
)

// toLoad is a kernel of a layer that New emits and loads.
type toLoad struct {
	emit   func() (loaded, jit.Source, error)
	to     *loaded
	of     loaded
	source jit.Source
	size   int // number of instructions
}

// emits lists the kernels of a layer. A nil layer has none.
func (l *Layer) emits(done emit.Built, o options) []toLoad {
	if l == nil {
		return nil
	}
	wanted := o.wanted(l.of)
	l.kernels = make([]loaded, len(wanted))
	list := make([]toLoad, len(wanted))
	for i, k := range wanted {
		list[i] = toLoad{to: &l.kernels[i], emit: func() (loaded, jit.Source, error) {
			b, source, err := emit.Kernel(l.of, k, done)
			source.Logger = o.logger
			return loaded{Any: k, name: l.of.KernelName(k), built: b, entry: source.Name}, source, err
		}}
	}
	return list
}

// loadAll emits and loads the kernels of a layer and of its shared experts in parallel. As many
// kernels as there are processors load at a time, the longest first: the longest ones bound the time
// of a start, and they take longer if all kernels compile at once.
func (l *Layer) loadAll(ctx context.Context, list []toLoad, o options) error {
	var emission errgroup.Group
	for i := range list {
		emission.Go(func() (err error) {
			k := &list[i]
			if k.of, k.source, err = k.emit(); err == nil {
				k.size = len(k.source.Module.Entry(k.source.Name).Body)
			}
			return err
		})
	}
	if err := emission.Wait(); err != nil {
		return err
	}
	slices.SortStableFunc(list, func(a, b toLoad) int { return cmp.Compare(b.size, a.size) })
	// The group does not cancel the loads of other kernels if one fails, and Wait waits for all.
	// When New returns an error other than ctx's, no load still runs on the device.
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	loader := jit.Of(l.dev)
	for _, k := range list {
		g.Go(func() (err error) {
			if k.of.fn, err = loader.Load(ctx, o.cache, k.source, compileOptions); err != nil {
				return err
			}
			o.logger.Info("kernel ready", "kernel", k.of.name, "origin", k.of.fn.Origin.String())
			*k.to = k.of
			return nil
		})
	}
	return g.Wait()
}
