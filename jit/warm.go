package jit

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"sonicmoe/cache"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/store"
	"sonicmoe/ptx"
)

// Compiler turns PTX into machine code, and names itself as the producer. Every gpu.Device is a
// Compiler. [Ptxas] returns another one.
type Compiler interface {
	Producer() string
	Compile(ctx context.Context, ptx []byte, o gpu.CompileOptions) (gpu.Image, error)
}

// WarmOptions are options of [Warm]. The zero value stores only PTX.
type WarmOptions struct {
	// By compiles the kernels. If it is nil, only PTX is stored, and the device will compile
	// everything itself.
	By Compiler
	// Compile has the options with which Load will be called. They are part of the key.
	Compile gpu.CompileOptions
	// Parallel is the number of kernels that are compiled at the same time. 0 means GOMAXPROCS.
	Parallel int
	// Progress is called after each kernel. Calls do not overlap.
	Progress func(Warmed)
}

// Warmed describes a kernel that the cache now holds.
type Warmed struct {
	Label string
	// Origin is Compiled, or Cached if the cache had the entry before, or Loaded if another kernel
	// of the same call has the same text.
	Origin Origin
}

// Warm stores kernels in a cache, under the keys that Load uses on a device of the architecture,
// such as "sm_90a". Load then compiles nothing. Kernels with equal text are compiled once. The
// error is a *CompileError, the reason why the cache could not store, or ctx's error. Kernels that
// were stored before the error stay in the cache.
func Warm(ctx context.Context, c *cache.Cache, arch string, sources []Source, o WarmOptions) error {
	if o.Parallel <= 0 {
		o.Parallel = runtime.GOMAXPROCS(0)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.Parallel)
	var mu sync.Mutex
	seen := map[store.Key]bool{}
	for _, s := range sources {
		text := s.Module.Print()
		key := moduleKey(text.PTX, arch, o.Compile)
		again := seen[key]
		seen[key] = true
		g.Go(func() error {
			origin, err := Loaded, ctx.Err()
			if err == nil && !again {
				origin, err = warm(ctx, c, key, s, text, o)
			}
			if err != nil {
				return fmt.Errorf("warming kernel %s: %w", s.Name, err)
			}
			if o.Progress != nil {
				mu.Lock()
				defer mu.Unlock()
				o.Progress(Warmed{s.Label, origin})
			}
			return nil
		})
	}
	return g.Wait()
}

// warm stores one kernel, unless the cache has it already.
func warm(ctx context.Context, c *cache.Cache, key store.Key, s Source, text ptx.Text, o WarmOptions) (Origin, error) {
	b, err := build(ctx, c, key, o.By, s, text, o.Compile)
	if err != nil || b.Origin == Cached {
		return b.Origin, err
	}
	if outcome := b.Put(c); outcome != store.Stored && outcome != store.Unchanged {
		if err := c.Err(); err != nil {
			return Compiled, err
		}
		return Compiled, fmt.Errorf("the cache stores nothing: %s", outcome)
	}
	return Compiled, nil
}
