package jit

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/internal/store"
	"sonicmoe/ptx"
)

// Compiler turns PTX into machine code and says who it is. A driver.Device is
// one, [Ptxas] another.
type Compiler interface {
	Producer() string
	Compile(ctx context.Context, ptx []byte, o driver.CompileOptions) (driver.Image, error)
}

// WarmOptions say how Warm fills a cache. The zero value stores PTX only.
type WarmOptions struct {
	// By makes the machine code; nil stores PTX only, which spares a device
	// nothing of the compiling.
	By Compiler
	// Compile is what Load will be given: part of the key.
	Compile driver.CompileOptions
	// Parallel is how many kernels are compiled at once; 0 means as many as Go
	// uses processors.
	Parallel int
	// Progress hears of each kernel that is done, one at a time.
	Progress func(Warmed)
}

// Warmed is a kernel that a cache has now.
type Warmed struct {
	Label string
	// Origin is Compiled, or Cached where the entry was there already, or
	// Loaded where another kernel of the same call has the same text.
	Origin Origin
}

// Warm stores kernels in a cache as Load will look for them on a device of the
// architecture, such as "sm_90a", so that it finds them and compiles nothing.
// Kernels of equal text are compiled once. Errors: *CompileError, one that says
// why the cache could not store, and ctx's; what was stored before stays.
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

// warm stores one kernel, unless the cache has it.
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
