package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/setup"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/tools"
	"sonicmoe/ptx/ptxas"
)

// fill holds the flags of the subcommand fill.
type fill struct {
	*console
	sizes            *setup.Sizes
	lists, models    []string
	gateUp, logits   string
	dir, export      string
	by, gpu, arch    string
	sms, parallel    int
	ptxOnly, showBar bool
	sizesOnly        bool
	expertsOnly      bool
}

func fillCommand(set *flag.FlagSet, c *console) func(context.Context, []string) error {
	f := &fill{console: c, sizes: setup.SizeFlags(set, true)}
	set.Func("layers", "a JSON `file` of layers, such as {\"layers\": [{\"hidden\": 1536, \"intermediate\": 256, \"experts\": 128, \"topK\": 8}]}; the other keys stand for fields of moe.Config, such as \"gateUp\"; may be repeated", func(s string) error {
		f.lists = append(f.lists, s)
		return nil
	})
	set.Func("config", "a model's config.json, a `file` or its folder; may be repeated", func(s string) error {
		f.models = append(f.models, s)
		return nil
	})
	set.StringVar(&f.gateUp, "gateup", "", "`order` of W1's rows, for layers that are not from -layers: concatenated, interleaved or apart (default: the model's, else concatenated)")
	set.StringVar(&f.logits, "logits", "", "`format` of router logits, for layers that are not from -layers: bf16, f32 or f16 (default: the model's, else bf16)")
	set.StringVar(&f.dir, "cache", "", "the cache `directory` to fill (default: the user's)")
	set.StringVar(&f.export, "export", "", "then write the whole cache as a bundle to this `file`")
	set.StringVar(&f.by, "by", auto, "`compiler`: ptxas, driver, or auto, which is ptxas if it is found, else the driver, else none: PTX only")
	set.BoolVar(&f.sizesOnly, "sizes-only", false, "for a -config whose layer the kernels do not compute: fill for the plain layer of its sizes")
	set.BoolVar(&f.expertsOnly, "experts-only", false, "for a -config whose router the kernels do not compute: fill for its experts, for calls with given ids and scores")
	set.BoolVar(&f.ptxOnly, "ptx-only", false, "store PTX without machine code, which the first start compiles")
	set.StringVar(&f.arch, "arch", "sm_90a", "`architecture` to assemble for; the kernels are for sm_90a")
	set.StringVar(&f.gpu, "gpu", "H200", "the `GPU` to choose tile shapes for, if none is here: H200 or H100")
	set.IntVar(&f.sms, "sms", 0, "its `number` of SMs, if not 132")
	set.IntVar(&f.parallel, "parallel", 0, "`number` of kernels to compile at once (default: the processors)")
	set.BoolVar(&f.showBar, "bar", command.Terminal(c.err), "draw a progress bar (default: on a terminal)")
	return f.run
}

func (f *fill) run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		return command.Usagef("%q is no flag; give layers by -row, -rows, -shape, -layers or -config", args[0])
	}
	if f.ptxOnly && f.by != auto {
		return command.Usagef("-by %s and -ptx-only are given, want one of them", f.by)
	}
	if f.sizes.Listed(f.out) {
		return nil
	}
	layers, err := f.collect(ctx)
	if err != nil {
		return err
	}
	by, target, done, err := f.compiler(ctx)
	if err != nil {
		return err
	}
	defer done()
	c := cache.Open(cache.Options{Dir: f.dir, Logger: slog.New(slog.NewTextHandler(f.err, nil))})
	if c.Dir() == "" {
		return fmt.Errorf("there is no cache directory to fill: %w", errors.Join(c.Err(), errors.New("name one with -cache")))
	}
	start := time.Now()
	counts, err := f.warm(ctx, c, layers, target, by)
	if err != nil {
		return err
	}
	did := "compiled"
	if by == nil {
		did = "stored as PTX"
	}
	fmt.Fprintf(f.out, "cache          %s: %d kernels %s, %d there already, %v\n", c.Dir(), counts[jit.Compiled], did, counts[jit.Cached], time.Since(start).Round(time.Millisecond))
	if by == nil {
		fmt.Fprintln(f.out, "machine code   none made: PTX alone saves its writing, a part of a second, and no compilation; the first start on a GPU compiles")
	}
	if n := c.Stats().Evicted; n > 0 {
		return fmt.Errorf("%d files were removed to keep the cache's size bound: fill a directory of its own with -cache", n)
	}
	if f.export == "" {
		return nil
	}
	return exportTo(ctx, c, f.export, f.console)
}

// collect returns the layers that all flags name, after checking them.
func (f *fill) collect(ctx context.Context) ([]layer, error) {
	var logits moe.Type
	if err := parse(&logits, "-logits", f.logits); err != nil {
		return nil, command.Usagef("%w", err)
	}
	of := whole
	switch {
	case f.sizesOnly && f.expertsOnly:
		return nil, command.Usagef("-experts-only and -sizes-only are given, want one of them")
	case (f.sizesOnly || f.expertsOnly) && len(f.models) == 0:
		return nil, command.Usagef("-sizes-only and -experts-only need a -config, which is not given")
	case f.sizesOnly:
		of = sizesOnly
	case f.expertsOnly:
		of = expertsOnly
	}
	var layers []layer
	for _, r := range f.sizes.Rows() {
		layers = append(layers, layer{name: r.Name, config: r.Config, anyHint: r.Tokens == 0})
	}
	for _, path := range f.models {
		l, err := readModel(ctx, path, of)
		if err != nil {
			return nil, err
		}
		layers = append(layers, l)
	}
	for i := range layers {
		c := &layers[i].config
		if f.gateUp != "" {
			c.GateUp = moe.GateUp(f.gateUp)
		}
		if f.logits != "" {
			c.Logits = logits
		}
		if tokens := f.sizes.Tokens(); layers[i].anyHint && tokens > 0 {
			c.TokensHint, layers[i].anyHint = tokens, false
		}
	}
	for _, path := range f.lists {
		more, err := readLayers(ctx, path)
		if err != nil {
			return nil, err
		}
		layers = append(layers, more...)
	}
	if len(layers) == 0 {
		return nil, command.Usagef("no layers: give -row, -rows, -shape, -layers or -config")
	}
	for _, l := range layers {
		if err := moe.Check(l.config); err != nil {
			return nil, fmt.Errorf("layer %s: %w", l.name, err)
		}
		fmt.Fprintf(f.out, "layer          %s: %v\n", l.name, l.config)
		for _, note := range l.notes {
			fmt.Fprintf(f.out, "               note: %s\n", note)
		}
	}
	return layers, nil
}

// compiler returns a compiler to machine code, or nil if only PTX is stored. t is the chip for
// which tiles are chosen. done closes the compiler.
func (f *fill) compiler(ctx context.Context) (by jit.Compiler, t driver.Target, done func(), err error) {
	if t, err = f.target(); err != nil || f.ptxOnly {
		return nil, t, func() {}, err
	}
	by, t, done, err = compiler(ctx, f.by, t)
	if f.by == auto && errors.Is(err, driver.ErrNoDevice) {
		fmt.Fprintln(f.err, "there is neither ptxas (pip install nvidia-cuda-nvcc==13.0.88) nor a GPU here: only PTX is stored")
		return nil, t, done, nil
	}
	if err != nil && command.Code(err) != command.Misuse {
		err = fmt.Errorf("%w; or store PTX alone with -ptx-only", err)
	}
	return by, t, done, err
}

// auto is the value of -by with which the command chooses the compiler.
const auto = "auto"

// compiler returns the compiler that -by names, ptxas or the driver of a GPU, and the chip for which
// that compiler compiles. Function done closes the compiler.
func compiler(ctx context.Context, who string, t driver.Target) (by jit.Compiler, _ driver.Target, done func(), err error) {
	done = func() {}
	switch who {
	case auto, "ptxas":
		if by, err = jit.Ptxas(ctx, t.Arch); err == nil {
			return by, t, done, nil
		}
		if who == "ptxas" || !errors.Is(err, ptxas.ErrNotFound) {
			return nil, t, done, err
		}
	case "driver":
	default:
		return nil, t, done, command.Usagef("-by is %q, want auto, ptxas or driver", who)
	}
	dev, openErr := cuda.Open(ctx, 0, cuda.Options{})
	if openErr != nil {
		return nil, t, done, fmt.Errorf("nothing compiles to machine code here: %w", errors.Join(err, openErr))
	}
	return dev, dev.Target(), func() { dev.Close() }, nil
}

// target returns the chip that the flags -gpu, -sms and -arch describe.
func (f *fill) target() (driver.Target, error) {
	var t driver.Target
	switch strings.ToUpper(f.gpu) {
	case "H200":
		t = driver.H200()
	case "H100":
		t = driver.H100()
	default:
		return t, command.Usagef("-gpu is %q, want H200 or H100; -sms gives the SMs of another chip", f.gpu)
	}
	if f.arch != t.Arch {
		return t, command.Usagef("-arch is %q, the kernels are for %s", f.arch, t.Arch)
	}
	if f.sms < 0 {
		return t, command.Usagef("-sms is %d, want the number of multiprocessors", f.sms)
	}
	if f.sms > 0 {
		t.SMs = f.sms
	}
	return t, nil
}

// warm emits and stores the kernels of all layers. It returns the number of kernels by origin.
func (f *fill) warm(ctx context.Context, c *cache.Cache, layers []layer, t driver.Target, by jit.Compiler) (map[jit.Origin]int, error) {
	var sources []jit.Source
	for _, l := range layers {
		for _, choice := range l.choices(t) {
			more, err := tools.Sources(t, l.config, moe.WithTilings(choice.Text()))
			if err != nil {
				return nil, fmt.Errorf("layer %s: %w", l.name, err)
			}
			sources = append(sources, more...)
		}
	}
	who := "storing PTX"
	if by != nil {
		who = "compiling by " + by.Producer() + " for " + t.Arch
	}
	bar := progressbar.NewOptions(len(sources), progressbar.OptionSetWriter(f.err), progressbar.OptionSetVisibility(f.showBar),
		progressbar.OptionSetDescription(who), progressbar.OptionShowCount(), progressbar.OptionSetWidth(30), progressbar.OptionOnCompletion(func() { fmt.Fprintln(f.err) }))
	if !f.showBar {
		fmt.Fprintln(f.err, who)
	}
	counts := map[jit.Origin]int{}
	err := jit.Warm(ctx, c, t.Arch, sources, jit.WarmOptions{By: by, Parallel: f.parallel, Progress: func(w jit.Warmed) {
		counts[w.Origin]++
		if w.Origin == jit.Loaded { // another kernel has the same text, and both share one file
			bar.ChangeMax(bar.GetMax() - 1)
			return
		}
		_ = bar.Add(1) // the progress bar may fail
	}})
	if err != nil {
		_ = bar.Exit()
	}
	return counts, err
}

// choices returns the tile shapes that moe.New may choose for the layer on a chip.
func (l layer) choices(t driver.Target) []tools.Tilings {
	hints := []int{l.config.TokensHint}
	if l.anyHint {
		for n := 1; n <= 1<<20; n *= 2 {
			hints = append(hints, n)
		}
	}
	var found []tools.Tilings
	for _, hint := range hints {
		c := l.config
		c.TokensHint = hint
		if choice := tools.Choose(c, t); !slices.Contains(found, choice) {
			found = append(found, choice)
		}
	}
	return found
}
