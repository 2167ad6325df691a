package jit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"sonicmoe/driver"
)

// Recompile compiles the modules of a cache again and compares, as Go's build
// cache does when it is told not to trust itself (GODEBUG=gocacheverify=1): what
// was altered and sealed again, or stored by an assembler that was not the real
// one, is found. Its Check is for [cache.Cache.Verify].
type Recompile struct {
	// By makes the machine code; only images of its Producer can be compared.
	By Compiler
	// Arch is what the cache was filled for: "sm_90a".
	Arch string

	mu        sync.Mutex
	same      int
	unchecked map[string]int
	failed    error
}

// Check compares one module. The error says that the machine code is not what
// By makes of the PTX, or that By refuses the PTX.
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
		// No loader looks for it: a module's key is that of its PTX.
		r.leave("PTX under a key that is not its own for " + r.Arch)
		return nil
	}
	made, err := r.By.Compile(ctx, text, o)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && !errors.Is(err, driver.ErrCompile) {
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

// leave counts what was not compared.
func (r *Recompile) leave(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unchecked == nil {
		r.unchecked = map[string]int{}
	}
	r.unchecked[why]++
}

// Same is how many images were made again to the byte.
func (r *Recompile) Same() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.same
}

// Err is why By could not compile some of them now, which says nothing about
// them; nil if it could.
func (r *Recompile) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// Unchecked counts, by what they are, those that could not be compared.
func (r *Recompile) Unchecked() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.unchecked)
}

// optionsOf finds the options that a module was compiled with: those that give
// its key.
func optionsOf(key string, text []byte, arch string) (driver.CompileOptions, bool) {
	for level := range 5 {
		for _, lines := range []bool{false, true} {
			o := driver.CompileOptions{LineInfo: lines, OptLevel: level}
			if moduleKey(text, arch, o).String() == key {
				return o, true
			}
		}
	}
	return driver.CompileOptions{}, false
}
