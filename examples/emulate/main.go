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
	"time"

	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/disk"
	"sonicmoe/ptx/emu"
)

var about = command.Program{Name: "emulate", Purpose: "runs a kernel of a PTX file on the emulator, in several orders of its asynchronous work, and finds its mistakes."}

func main() { about.Main(run) }

// maxPTX is the largest size of the PTX file, in bytes.
const maxPTX = 64 << 20

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "run" {
		return runProgram(ctx, args[1:], stdout, stderr)
	}
	flags := about.Flags()
	file := flags.String("ptx", "", "the PTX `file`")
	launchFile := flags.String("launch", "", "the `file` that describes the launch")
	seeds := flags.Int("check", 4, "`number` of random orders to run in addition to the earliest and the latest; 0 runs the earliest order only and finds no races")
	parts := flags.String("report", "", fmt.Sprintf("print these `parts` of a report on the first run: some of %v with commas, or all", emu.Parts))
	orders := flags.Int("explore", 0, "instead, run systematically this `number` of orders, or all if there are fewer, and print how many there were")
	timing := flags.String("timing", "", "instead, replay one run with this `order` of a finding: early, late, random or chosen")
	seed := flags.Uint64("seed", 0, "`seed` of the first random order, or of the run that -timing replays")
	choices := flags.String("choices", "", "`choices` of the run that -timing chosen replays")
	nans := flags.Bool("nan", false, "note the first NaN or infinity that each cluster makes")
	strict := flags.Bool("strict", false, "also demand proxy fences after cp.async")
	keep := flags.Bool("keep", false, "go on after races, missing proxy fences and uninitialised reads, and print all")
	knownFile := flags.String("known", "", "`file` of findings to go on after and not to report, one \"LINE RULE\" a line, such as \"37 race\"")
	format := flags.String("format", "text", "`format` of findings: text, json or sarif")
	fail := flags.String("fail", "strict", "least `severity` of a finding that sets exit status 1: error, strict or note")
	traceFile := flags.String("trace", "", "run the launch once more and write a trace of this run to a `file` that Perfetto and Chrome read; the order is late, or that of -timing")
	traceCTAs := flags.Int("ctas", 1, "`number` of CTAs that -trace records, the first of the grid")
	pagesDir := flags.String("html", "", "write an HTML page for each finding into a `folder`")
	var dumps []dump
	flags.Func("dump", "after the runs write a buffer to a file, `BUFFER=FILE`.npy, .safetensors or .bin; may be repeated", func(text string) error {
		d, err := parseDump(text)
		dumps = append(dumps, d)
		return err
	})
	timeout := flags.Duration("timeout", time.Minute, "longest `time` of all runs")
	if err := about.Parse(flags, args, stdout); err != nil {
		return err
	}
	switch {
	case *file == "" || *launchFile == "":
		return command.Usagef("-ptx and -launch must both name a file")
	case *format != "text" && *format != "json" && *format != "sarif":
		return command.Usagef("-format is %q, must be text, json or sarif", *format)
	case *traceCTAs < 1:
		return command.Usagef("-ctas is %d, must be 1 or more", *traceCTAs)
	case *seeds < 0 || *orders < 0 || *timeout <= 0:
		return command.Usagef("-check is %d, -explore %d and -timeout %v, must be 0 or more, and above 0", *seeds, *orders, *timeout)
	}
	fails, err := severityOf(*fail)
	if err != nil {
		return err
	}
	text, err := disk.ReadFile(ctx, disk.OS, *file, maxPTX)
	if err != nil {
		return err
	}
	var listed known
	if *knownFile != "" {
		lines, err := command.ReadText(ctx, *knownFile)
		if err != nil {
			return err
		}
		if listed, err = readKnown(lines); err != nil {
			return err
		}
	}
	l, err := readLaunch(ctx, *launchFile)
	if err != nil {
		return err
	}
	if err := l.checkDumps(dumps); err != nil {
		return err
	}
	module, err := emu.Load(text)
	if err != nil {
		return err
	}
	kernel, err := module.Kernel(l.Kernel)
	if err != nil {
		return err
	}
	memory := emu.NewMemory(8 << 30)
	buffers, err := l.allocate(ctx, memory)
	if err != nil {
		return err
	}
	params, err := l.pack(kernel.Params(), buffers)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	report, err := reportOf(*parts)
	if err != nil {
		return err
	}
	shape := emu.Launch{Grid: l.Grid, Block: l.Block, Cluster: l.Cluster, SharedBytes: l.Shared, Cooperative: l.Cooperative, Params: params, Seed: *seed, StrictProxy: *strict, NaNs: *nans, Unread: true,
		Known: listed.has, GoOn: func(f *emu.Fault) bool { return *keep || f.Severity == emu.Note }}
	if report != nil {
		shape.Report = &emu.Report{}
	}
	if *timing != "" {
		if shape.Timing, err = timingOf(*timing); err != nil {
			return err
		}
	}
	if *traceFile != "" {
		if err := writeTrace(ctx, *traceFile, *traceCTAs, kernel, memory, shape, *timing == ""); err != nil {
			return err
		}
	}
	ran := "1 run"
	switch {
	case *timing != "":
		shape.Choices, shape.Races, shape.Parallel = *choices, true, 1
		err = kernel.Once(ctx, memory, shape)
	case *orders > 0:
		var e emu.Exploration
		e, err = kernel.Explore(ctx, memory, shape, *orders)
		ran = e.String()
	case *seeds > 0:
		err = kernel.Check(ctx, memory, shape, *seeds)
		ran = fmt.Sprintf("%d runs", 2+*seeds)
	default:
		err = kernel.Once(ctx, memory, shape)
	}
	if report != nil {
		err = errors.Join(shape.Report.Write(stdout, report...), err)
	}
	pagesErr := listed.writePages(ctx, *pagesDir, *file, text, kernel.Regions(l.Shared), err)
	found, err := listed.report(stdout, *format, *file, fails, err)
	if pagesErr != nil {
		err = errors.Join(err, pagesErr)
	}
	for _, d := range dumps {
		err = errors.Join(err, d.write(l, memory, buffers))
	}
	if err != nil || *format != "text" {
		return err
	}
	fmt.Fprintf(stdout, "kernel %s: %s found in %s\n", l.Kernel, found, ran)
	return l.show(stdout, memory, buffers)
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
