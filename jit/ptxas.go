package jit

import (
	"context"
	"fmt"
	"strconv"

	"sonicmoe/driver"
	"sonicmoe/internal/devkit"
	"sonicmoe/ptx/ptxas"
)

// Ptxas is the ptxas that package ptx/ptxas finds, as a Compiler for an
// architecture such as "sm_90a". The error matches [ptxas.ErrNotFound] where
// none is installed.
func Ptxas(ctx context.Context, arch string) (Compiler, error) {
	bin, err := ptxas.Find()
	if err != nil {
		return nil, err
	}
	version, err := ptxas.Version(ctx, bin)
	if err != nil {
		return nil, err
	}
	return assembler{bin, arch, "ptxas " + version}, nil
}

type assembler struct{ bin, arch, producer string }

// Producer is "ptxas 13.0.88".
func (a assembler) Producer() string { return a.producer }

// Compile runs ptxas. Like a driver's, the error holds the log and matches
// driver.ErrCompile. What was written and is no image for the architecture is
// an error that matches driver.ErrWrongImage: it reaches no cache.
func (a assembler) Compile(ctx context.Context, text []byte, o driver.CompileOptions) (driver.Image, error) {
	var flags []string
	if o.LineInfo {
		flags = append(flags, "-lineinfo")
	}
	if o.OptLevel != 0 {
		flags = append(flags, "-O"+strconv.Itoa(o.OptLevel))
	}
	code, log, err := ptxas.Run(ctx, a.bin, a.arch, text, flags...)
	switch {
	case ctx.Err() != nil:
		return driver.Image{}, ctx.Err()
	case err != nil:
		return driver.Image{}, &driver.Error{Op: "ptxas", Kind: driver.ErrCompile, Text: "refused the text", Log: log}
	}
	if err := devkit.CheckImage(code, a.arch); err != nil {
		return driver.Image{}, fmt.Errorf("what %s wrote: %w", a.bin, err)
	}
	return driver.Image{Code: code, Log: log}, nil
}
