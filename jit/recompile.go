package jit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"sonicmoe/driver/gpu"
)

// Recompile compiles the modules of a cache again and compares the machine code, like Go's build
// cache with GODEBUG=gocacheverify=1. It finds machine code that was changed and sealed again, and
// code that a fake assembler has stored. Its method Check is an argument for [cache.Cache.Verify].
type Recompile struct {
	// By compiles the modules. Only images of By's Producer can be compared.
	By Compiler
	// Arch is the architecture for which the cache was filled, such as "sm_90a".
	Arch string

	mu        sync.Mutex
	same      int
	unchecked map[string]int
	failed    error
}

// Check compares one module. It returns an error if By makes other machine code from the PTX, or
// refuses the PTX.
func (r *Recompile) Check(ctx context.Context, key string, text []byte, code map[string][]byte) error {
	own := r.By.Producer()
	for producer := range code {
		if producer != own {
			r.leave("machine code of " + producer)
		}
	}
	if len(code) == 0 {
		r.leave("PTX alone")
	}
	stored, ok := code[own]
	if !ok {
		return nil
	}
	o, ok := optionsOf(key, text, r.Arch)
	if !ok {
		// No loader looks for this entry, because the key of a module is computed from its PTX.
		r.leave("PTX under a key that is not its own for " + r.Arch)
		return nil
	}
	made, err := r.By.Compile(ctx, text, o)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && !errors.Is(err, gpu.ErrCompile) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.failed = errors.Join(r.failed, fmt.Errorf("compiling %s again: %w", key, err))
		return nil
	}
	if err != nil {
		why, _, _ := strings.Cut(err.Error(), "\n")
		return fmt.Errorf("%s does not compile its PTX: %s", own, why)
	}
	if !bytes.Equal(made.Code, stored) {
		return fmt.Errorf("its machine code is not what %s makes of its PTX", own)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.same++
	return nil
}

// leave counts a module that was not compared, with the reason.
func (r *Recompile) leave(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unchecked == nil {
		r.unchecked = map[string]int{}
	}
	r.unchecked[why]++
}

// Same returns the number of images that By has reproduced exactly.
func (r *Recompile) Same() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.same
}

// Err returns why By could not compile some modules, for example because it crashed. It returns
// nil if By could compile all. An error does not mean that these modules are wrong.
func (r *Recompile) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// Unchecked returns how many modules could not be compared, for each reason.
func (r *Recompile) Unchecked() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.unchecked)
}

// optionsOf finds the compile options of a module, by trying which options give its key.
func optionsOf(key string, text []byte, arch string) (gpu.CompileOptions, bool) {
	for level := range 5 {
		for _, lines := range []bool{false, true} {
			o := gpu.CompileOptions{LineInfo: lines, OptLevel: level}
			if moduleKey(text, arch, o).String() == key {
				return o, true
			}
		}
	}
	return gpu.CompileOptions{}, false
}
