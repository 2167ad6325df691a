package jit

import (
	"bytes"
	"context"

	"sonicmoe/cache"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/store"
	"sonicmoe/ptx"
)

// Built is the machine code of a kernel, not yet loaded.
type Built struct {
	// Entry is what a cache stores for the kernel: the PTX and one image.
	Entry store.Entry
	// Origin is Cached or Compiled.
	Origin Origin

	key store.Key
}

// Code is the machine code.
func (b Built) Code() []byte { return b.Entry.Images[0].Code }

// Put stores the entry under the key with which Load looks for it.
func (b Built) Put(c *cache.Cache) store.Outcome { return store.Of(c).Put(b.key, b.Entry) }

// Build returns a kernel's machine code for an architecture, without running it.
// It takes the code from the cache (nil means no cache) if it holds an image of
// the same producer, and compiles otherwise. Build stores nothing. Its errors are
// *CompileError and the compiler's own.
func Build(ctx context.Context, c *cache.Cache, arch string, by Compiler, s Source, o gpu.CompileOptions) (Built, error) {
	text := s.Module.Print()
	return build(ctx, c, moduleKey(text.PTX, arch, o), by, s, text, o)
}

// build is Build for printed text and its key. Without a compiler it returns an
// entry with PTX alone.
func build(ctx context.Context, c *cache.Cache, key store.Key, by Compiler, s Source, text ptx.Text, o gpu.CompileOptions) (Built, error) {
	b := Built{Entry: store.Entry{Label: s.Label, PTX: text.PTX}, Origin: Cached, key: key}
	if c != nil {
		if old, outcome := store.Of(c).Get(b.key); outcome == store.Hit && bytes.Equal(old.PTX, text.PTX) {
			if by == nil {
				return b, nil
			}
			if img, ok := old.Image(by.Producer()); ok {
				b.Entry.Images = []store.Image{img}
				return b, nil
			}
		}
	}
	b.Origin = Compiled
	if by == nil {
		return b, nil
	}
	img, err := by.Compile(ctx, text.PTX, o)
	if err != nil {
		return b, compileError(s.Name, text, err)
	}
	b.Entry.Images = []store.Image{{Producer: by.Producer(), Code: img.Code, Log: img.Log}}
	return b, nil
}
