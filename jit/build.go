package jit

import (
	"bytes"
	"context"

	"sonicmoe/cache"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/store"
	"sonicmoe/ptx"
)

// Built is the machine code of a kernel that has not been loaded.
type Built struct {
	// Entry is what a cache stores for the kernel: its PTX and one image of machine code.
	Entry store.Entry
	// Origin is Cached or Compiled.
	Origin Origin

	key store.Key
}

// Code returns the machine code.
func (b Built) Code() []byte { return b.Entry.Images[0].Code }

// Put stores the entry in a cache, under the key that [Loader.Load] looks up.
func (b Built) Put(c *cache.Cache) store.Outcome { return store.Of(c).Put(b.key, b.Entry) }

// Build returns a kernel's machine code for an architecture. It neither loads nor runs the kernel.
// If the cache (nil means no cache) holds an image of the same producer, Build returns it;
// otherwise it compiles. Build stores nothing. It returns *CompileError if the compiler refuses the
// kernel, and the compiler's own errors.
func Build(ctx context.Context, c *cache.Cache, arch string, by Compiler, s Source, o gpu.CompileOptions) (Built, error) {
	text := s.Module.Print()
	return build(ctx, c, moduleKey(text.PTX, arch, o), by, s, text, o)
}

// build does the same as Build for printed text and its key. Without a compiler it returns an entry
// that has only PTX.
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
