// Command emulate runs a kernel of any PTX file on the emulator and says what
// is wrong with it: deadlocks, races, missing fences and waits, accesses out of
// bounds, with the lines of the PTX and, where the file has them (nvcc
// -lineinfo, Triton), of its source. debug-a-kernel.md shows how to read
// what it says.
//
//	go run ./examples/emulate -ptx KERNEL.ptx -launch LAUNCH.json [-check N | -explore N] [-report all] [-timeout 1m]
//
// LAUNCH.json names the kernel, the shape of the launch and what it is given: type
// launch has the fields, testdata/sum.json is an example.
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

var about = command.Program{Name: "emulate", Purpose: "runs a kernel of a PTX file on the emulator, in several orders of its asynchronous work, and names what is wrong with it."}

func main() { about.Main(run) }

// maxPTX bounds the PTX file, in bytes.
const maxPTX = 64 << 20

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := about.Flags()
	file := flags.String("ptx", "", "the PTX `file`")
	launchFile := flags.String("launch", "", "the `file` that describes the launch")
	seeds := flags.Int("check", 4, "how many random orders to run beside the earliest and the latest; 0 runs the earliest alone and looks for no races")
	parts := flags.String("report", "", fmt.Sprintf("print a report of the first run, as counted: some of %v, with commas between, or \"all\"", emu.Parts))
	orders := flags.Int("explore", 0, "how many orders to run instead, one after the other, unless there are no more: it says how much that was")
	timeout := flags.Duration("timeout", time.Minute, "the longest that all runs may take")
	if err := about.Parse(flags, args, stdout); err != nil {
		return err
	}
	switch {
	case *file == "" || *launchFile == "":
		return command.Usagef("-ptx and -launch must both name a file")
	case *seeds < 0 || *orders < 0 || *timeout <= 0:
		return command.Usagef("-check is %d, -explore %d and -timeout %v, must be 0 or more, and above 0", *seeds, *orders, *timeout)
	}
	text, err := disk.ReadFile(ctx, disk.OS, *file, maxPTX)
	if err != nil {
		return err
	}
	l, err := readLaunch(ctx, *launchFile)
	if err != nil {
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
	buffers, err := l.allocate(memory)
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
	shape := emu.Launch{Grid: l.Grid, Block: l.Block, Cluster: l.Cluster, SharedBytes: l.Shared, Params: params}
	if report != nil {
		shape.Report = &emu.Report{}
	}
	ran := "1 run"
	switch {
	case *orders > 0:
		var e emu.Exploration
		e, err = kernel.Explore(ctx, memory, shape, *orders)
		ran = e.String()
	case *seeds > 0:
		err = kernel.Check(ctx, memory, shape, *seeds)
		ran = fmt.Sprintf("%d runs", 2+*seeds)
	default:
		err = kernel.Launch(ctx, memory, shape)
	}
	if report != nil {
		err = errors.Join(shape.Report.Write(stdout, report...), err)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "kernel %s: nothing found in %s\n", l.Kernel, ran)
	return l.show(stdout, memory, buffers)
}

// reportOf are the parts of a report that a flag names, nil for none.
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
