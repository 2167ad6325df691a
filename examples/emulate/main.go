// Command emulate runs a kernel of any PTX file on the emulator and finds mistakes in the
// kernel: deadlocks, races, missing fences and waits, accesses out of bounds. Messages name
// lines of the PTX and, if the file has them (nvcc -lineinfo, Triton), of the source.
// debug-a-kernel.md explains the messages.
//
//	go run ./examples/emulate -ptx KERNEL.ptx -launch LAUNCH.json [-check N | -explore N] [-report all] [-trace FILE] [-html FOLDER] [-keep] [-dump BUFFER=FILE] [-format json] [-timeout 1m]
//	go run ./examples/emulate run [-check N | -explore N | -races] [-stop] PROGRAM ARGS...
//
// LAUNCH.json has the kernel's name, the shape of the launch and the arguments. Type launch
// documents its fields; testdata/sum.json is an example. With run, the program is any CUDA program
// that nvcc built for compute_90a: package cudart takes the place of CUDA's libraries.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"sonicmoe/examples/emulate/internal/findings"
	"sonicmoe/examples/internal/command"
	"sonicmoe/ptx/emu"
)

var about = command.Program{Name: "emulate", Purpose: "runs a kernel of a PTX file on the emulator, in several orders of its asynchronous work, and finds its mistakes."}

func main() { about.Main(run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "run" {
		return runProgram(ctx, args[1:], stdout, stderr)
	}
	flags := about.Flags()
	o := newKernelFlags(flags)
	if err := about.Parse(flags, args, stdout); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	if o.list {
		return o.show(ctx, stdout)
	}
	listed, fails, err := o.known(ctx)
	if err != nil {
		return err
	}
	p, err := o.prepare(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	parts, err := reportOf(o.parts)
	if err != nil {
		return err
	}
	shape, err := o.launch(p, listed, parts)
	if err != nil {
		return err
	}
	if o.traceFile != "" {
		if err := findings.WriteTrace(ctx, o.traceFile, o.traceCTAs, p.kernel, p.memory, shape, o.timing == ""); err != nil {
			return err
		}
	}
	ran, err := o.runs(ctx, p, shape)
	if parts != nil {
		err = errors.Join(shape.Report.Write(stdout, parts...), err)
	}
	pagesErr := writePages(ctx, o.pagesDir, findings.Pages{File: o.file, Text: p.text, Regions: p.kernel.Regions(p.Shared)}, listed, err)
	found, err := report(stdout, o.format, o.file, listed, fails, err)
	if pagesErr != nil {
		err = errors.Join(err, pagesErr)
	}
	for _, d := range o.dumps {
		err = errors.Join(err, d.write(p.launch, p.memory, p.buffers))
	}
	if err == nil {
		err = p.wrong(ctx, p.memory, p.buffers)
	}
	if err != nil || o.format != "text" {
		return err
	}
	fmt.Fprintf(stdout, "kernel %s: %s found in %s\n", p.Kernel, found, ran)
	return p.show(stdout, p.memory, p.buffers)
}

// reportOf returns the parts of the report that -report names, or nil for none.
func reportOf(names string) (list []emu.Part, err error) {
	if names == "all" {
		return emu.Parts, nil
	}
	for name := range strings.SplitSeq(names, ",") {
		switch {
		case names == "":
		case !slices.Contains(emu.Parts, emu.Part(name)):
			return nil, command.Usagef("-report names %q, must be some of %v, or all", name, emu.Parts)
		default:
			list = append(list, emu.Part(name))
		}
	}
	return list, nil
}
