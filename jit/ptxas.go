package jit

import (
	"context"
	"fmt"
	"strconv"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/devkit"
	"sonicmoe/ptx/ptxas"
)

// Ptxas returns a Compiler for an architecture such as "sm_90a": the ptxas that package ptx/ptxas
// finds. If none is installed, the error matches [ptxas.ErrNotFound].
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

// Producer returns the name and version of the assembler, such as "ptxas 13.0.88".
func (a assembler) Producer() string { return a.producer }

// Compile runs ptxas. If ptxas refuses the text, the error has the log and matches gpu.ErrCompile,
// as a driver's error does. If the output is not an image for the architecture, the error matches
// gpu.ErrWrongImage, so nothing is cached.
func (a assembler) Compile(ctx context.Context, text []byte, o gpu.CompileOptions) (gpu.Image, error) {
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
		return gpu.Image{}, ctx.Err()
	case err != nil:
		return gpu.Image{}, &driver.Error{Op: "ptxas", Kind: gpu.ErrCompile, Text: "refused the text", Log: log}
	}
	if err := devkit.CheckImage(code, a.arch); err != nil {
		return gpu.Image{}, fmt.Errorf("output of %s: %w", a.bin, err)
	}
	return gpu.Image{Code: code, Log: log}, nil
}
