package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"time"

	"sonicmoe/examples/emulate/internal/findings"
	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/disk"
	"sonicmoe/ptx/emu"
)

// kernelFlags has the flags of a run of a PTX file's kernel. Each flag's text says what it means.
type kernelFlags struct {
	file, launchFile, knownFile string
	seeds, orders               int
	parts                       string
	timing, choices             string
	seed                        uint64
	nans, strict, keep, list    bool
	format, fail                string
	traceFile                   string
	traceCTAs                   int
	pagesDir                    string
	dumps                       []dump
	timeout                     time.Duration
}

func newKernelFlags(flags *flag.FlagSet) *kernelFlags {
	var o kernelFlags
	flags.StringVar(&o.file, "ptx", "", "the PTX `file`")
	flags.BoolVar(&o.list, "list", false, "instead, list the file's kernels with their parameters")
	flags.StringVar(&o.launchFile, "launch", "", "the `file` that describes the launch")
	flags.IntVar(&o.seeds, "check", 4, "`number` of random orders to run in addition to the earliest and the latest; 0 runs the earliest order only and finds no races")
	flags.StringVar(&o.parts, "report", "", fmt.Sprintf("print these `parts` of a report on the first run: some of %v with commas, or all", emu.Parts))
	flags.IntVar(&o.orders, "explore", 0, "instead, run systematically this `number` of orders, or all if there are fewer, and print how many there were")
	flags.StringVar(&o.timing, "timing", "", "instead, replay one run with this `order` of a finding: early, late, random or chosen")
	flags.Uint64Var(&o.seed, "seed", 0, "`seed` of the first random order, or of the run that -timing replays")
	flags.StringVar(&o.choices, "choices", "", "`choices` of the run that -timing chosen replays")
	flags.BoolVar(&o.nans, "nan", false, "note the first NaN or infinity that each cluster makes")
	flags.BoolVar(&o.strict, "strict", false, "also demand proxy fences after cp.async")
	flags.BoolVar(&o.keep, "keep", false, "go on after races, missing proxy fences and uninitialised reads, and print all")
	flags.StringVar(&o.knownFile, "known", "", "`file` of findings to go on after and not to report, one \"LINE RULE\" a line, such as \"37 race\"")
	flags.StringVar(&o.format, "format", "text", "`format` of findings: text, json or sarif")
	flags.StringVar(&o.fail, "fail", "strict", "least `severity` of a finding that sets exit status 1: error, strict or note")
	flags.StringVar(&o.traceFile, "trace", "", "run the launch once more and write a trace of this run to a `file` that Perfetto and Chrome read; the order is late, or that of -timing")
	flags.IntVar(&o.traceCTAs, "ctas", 1, "`number` of CTAs that -trace records, the first of the grid")
	flags.StringVar(&o.pagesDir, "html", "", "write an HTML page for each finding into a `folder`")
	flags.Func("dump", "after the runs write a buffer to a file, `BUFFER=FILE`.npy, .safetensors or .bin; may be repeated", func(text string) error {
		d, err := parseDump(text)
		o.dumps = append(o.dumps, d)
		return err
	})
	flags.DurationVar(&o.timeout, "timeout", time.Minute, "longest `time` of all runs")
	return &o
}

// check refuses wrong values.
func (o *kernelFlags) check() error {
	switch {
	case o.file == "" || o.launchFile == "" && !o.list:
		return command.Usagef("-ptx and -launch must both name a file, or -ptx alone with -list")
	case o.format != "text" && o.format != "json" && o.format != "sarif":
		return command.Usagef("-format is %q, must be text, json or sarif", o.format)
	case o.traceCTAs < 1:
		return command.Usagef("-ctas is %d, must be 1 or more", o.traceCTAs)
	case o.seeds < 0 || o.orders < 0 || o.timeout <= 0:
		return command.Usagef("-check is %d, -explore %d and -timeout %v, must be 0 or more, and above 0", o.seeds, o.orders, o.timeout)
	}
	return nil
}

// known reads the file of findings that are not reported, if one is given. It also returns the least
// severity that sets the exit status.
func (o *kernelFlags) known(ctx context.Context) (list findings.Known, fails emu.Severity, err error) {
	if fails, err = severityOf(o.fail); err != nil || o.knownFile == "" {
		return nil, fails, err
	}
	lines, err := command.ReadText(ctx, o.knownFile)
	if err == nil {
		list, err = findings.ReadKnown(lines)
	}
	return list, fails, err
}

// maxPTX is the largest size of the PTX file, in bytes.
const maxPTX = 64 << 20

// prepared is a launch with its kernel, and with its buffers in memory.
type prepared struct {
	*launch
	text    []byte // of the PTX file
	kernel  *emu.Kernel
	memory  *emu.Memory
	buffers map[string]uint64
	params  []byte
}

// show lists the kernels of the PTX file.
func (o *kernelFlags) show(ctx context.Context, w io.Writer) error {
	text, err := disk.ReadFile(ctx, disk.OS, o.file, maxPTX)
	if err != nil {
		return err
	}
	m, err := emu.Load(text)
	if err != nil {
		return err
	}
	return listKernels(w, m)
}

// prepare reads the PTX and the launch, and allocates the buffers.
func (o *kernelFlags) prepare(ctx context.Context) (*prepared, error) {
	p := &prepared{memory: emu.NewMemory(8 << 30)}
	var err error
	if p.text, err = disk.ReadFile(ctx, disk.OS, o.file, maxPTX); err != nil {
		return nil, err
	}
	if p.launch, err = readLaunch(ctx, o.launchFile); err != nil {
		return nil, err
	}
	if err := p.checkDumps(o.dumps); err != nil {
		return nil, err
	}
	module, err := emu.Load(p.text)
	if err != nil {
		return nil, err
	}
	if p.kernel, err = kernelOf(module, p.Kernel); err != nil {
		return nil, err
	}
	p.Kernel = findings.Name(p.kernel.Name())
	if p.buffers, err = p.allocate(ctx, p.memory); err != nil {
		return nil, err
	}
	p.params, err = p.pack(p.kernel.Params(), p.buffers)
	return p, err
}

// launch returns the launch with the choices of the flags.
func (o *kernelFlags) launch(p *prepared, listed findings.Known, report []emu.Part) (shape emu.Launch, err error) {
	shape = emu.Launch{Grid: p.Grid, Block: p.Block, Cluster: p.Cluster, SharedBytes: p.Shared, Cooperative: p.Cooperative, Params: p.params, Seed: o.seed, StrictProxy: o.strict, NaNs: o.nans, Unread: true,
		Known: listed.Has, GoOn: func(f *emu.Fault) bool { return o.keep || f.Severity == emu.Note }}
	if report != nil {
		shape.Report = &emu.Report{}
	}
	if o.timing != "" {
		shape.Timing, err = timingOf(o.timing)
	}
	return shape, err
}

// runs runs the launch in the orders that the flags ask for. It returns a text with the number of
// runs. The error has the findings.
func (o *kernelFlags) runs(ctx context.Context, p *prepared, l emu.Launch) (ran string, err error) {
	ran = "1 run"
	switch {
	case o.timing != "":
		l.Choices, l.Races, l.Parallel = o.choices, true, 1
		err = p.kernel.Once(ctx, p.memory, l)
	case o.orders > 0:
		var e emu.Exploration
		e, err = p.kernel.Explore(ctx, p.memory, l, o.orders)
		ran = e.String()
	case o.seeds > 0:
		err = p.kernel.Check(ctx, p.memory, l, o.seeds)
		ran = fmt.Sprintf("%d runs", 2+o.seeds)
	default:
		err = p.kernel.Once(ctx, p.memory, l)
	}
	return ran, err
}
