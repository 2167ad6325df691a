// Command tune finds the fastest tile points of a layer on this machine's GPU,
// stores them, and makes the layer with them.
//
//	go run ./examples/tune -row "7B n=256"
//	go run ./examples/tune -shape 1536,256,128,8,24576 -forward
//	go run ./examples/tune -row "7B n=256" -choices choices.json -plot points.png
//
// Run it twice: the second process tunes nothing and compiles nothing. Look at
// main's first line: candidates run in processes of their own, which this
// program is too when it is started so.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"sonicmoe/autotune"
	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/examples/internal/interrupt"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/spec"
	"sonicmoe/moe/tune"
)

func main() {
	autotune.WorkerMain()
	ctx, stop := interrupt.Context()
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "tune:", err)
		os.Exit(1)
	}
}

// job is the command line.
type job struct {
	config         moe.Config
	device, dir    string
	choices, plot  string
	products       string
	forward, again bool
	most           int
	budget         time.Duration
	histogram      []int64
	quiet          bool
}

// emulatedConfig is what the emulated device tunes in seconds.
var emulatedConfig = moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, TokensHint: 40}

func parse(args []string, stderr io.Writer) (job, error) {
	var j job
	set := flag.NewFlagSet("tune", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.Func("row", "a known layer by `name`, such as \"7B n=256\" (default on a GPU)", func(name string) error {
		row, ok := spec.FindRow(name)
		if !ok {
			return errors.New("no layer has that name; \"quickstart -rows\" lists them")
		}
		j.config = row.Config
		return nil
	})
	set.Func("shape", "a layer as `d,n,E,K,T`; T tokens a call decide the bucket of rows per expert", func(s string) error {
		var v [5]int
		parts := strings.Split(s, ",")
		if len(parts) != len(v) {
			return errors.New("want five numbers")
		}
		for i, p := range parts {
			var err error
			if v[i], err = strconv.Atoi(p); err != nil {
				return err
			}
		}
		j.config = moe.Config{Hidden: v[0], Intermediate: v[1], NumExperts: v[2], TopK: v[3], TokensHint: v[4]}
		return nil
	})
	set.StringVar(&j.device, "device", "", "the device: cuda, cuda:1 or emulated (default: a GPU if there is one)")
	set.StringVar(&j.dir, "cache", "", "the cache `directory` (default: the user's)")
	set.StringVar(&j.choices, "choices", "", "also write the choices to this JSON `file`, for autotune.ReadFile on all ranks")
	set.StringVar(&j.plot, "plot", "", "draw the candidates against the roofline in this .png or .svg `file`")
	set.StringVar(&j.products, "products", "", "tune these alone, with commas: up, down, dh, dx, dw1, dw2")
	set.BoolVar(&j.forward, "forward", false, "leave backward alone")
	set.BoolVar(&j.again, "again", false, "tune what has a valid choice too")
	set.IntVar(&j.most, "most", 0, "try so many candidates of each product, the cost model's best (default: all; 3 on the emulated device)")
	set.DurationVar(&j.budget, "budget", 0, "time for all products (default 45s)")
	set.Func("histogram", "route by this JSON `file`: an array with each expert's rows in real use (default: near-uniform)", func(path string) error {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return json.Unmarshal(data, &j.histogram)
	})
	set.BoolVar(&j.quiet, "quiet", false, "no progress")
	if err := set.Parse(args); err != nil {
		return j, err
	}
	if set.NArg() > 0 {
		return j, fmt.Errorf("%q is no flag", set.Arg(0))
	}
	return j, nil
}

// openDevice opens the device, or says that it falls back to the emulated one.
func openDevice(ctx context.Context, j *job, stdout io.Writer) (driver.Device, error) {
	name := j.device
	if name == "" {
		name = "cuda"
	}
	dev, err := open.Device(ctx, name)
	if j.device == "" && errors.Is(err, driver.ErrNoDevice) {
		fmt.Fprintf(stdout, "device         emulated, for there is no GPU: %v\n", err)
		name = "emulated"
		dev, err = open.Device(ctx, name)
	}
	j.device = name
	return dev, err
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	start := time.Now()
	j, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if j.choices != "" {
		if err := autotune.CheckFile(ctx, j.choices); err != nil {
			return err
		}
	}
	dev, err := openDevice(ctx, &j, stdout)
	if err != nil {
		return err
	}
	defer dev.Close()
	defer jit.Forget(dev)
	if j.device == "emulated" && j.most == 0 {
		j.most = 3 // it is slow, and its times mean nothing
		fmt.Fprintf(stdout, "candidates     %d of each product: -most tries more\n", j.most)
	}
	if j.config == (moe.Config{}) {
		row, _ := spec.FindRow("7B n=256")
		if j.config = row.Config; j.device == "emulated" {
			j.config = emulatedConfig
		}
	}
	c := cache.Open(cache.Options{Dir: j.dir, Logger: slog.New(slog.NewTextHandler(stderr, nil))})
	plan, err := tune.Layer(ctx, dev, j.config, j.options(c, stderr))
	if plan != nil {
		fmt.Fprint(stdout, plan)
	}
	if err != nil {
		return err
	}
	if err := plan.Save(ctx, dev); err != nil {
		return err
	}
	if err := j.write(ctx, plan, stdout); err != nil {
		return err
	}
	return makeLayer(ctx, dev, c, j, start, stdout)
}

// options are those of the search.
func (j job) options(c *cache.Cache, stderr io.Writer) tune.Options {
	o := tune.Options{Cache: c, Device: j.device, ForwardOnly: j.forward, Again: j.again, Budget: j.budget, Histogram: j.histogram}
	if j.products != "" {
		o.Products = strings.Split(j.products, ",")
	}
	o.Search.Most = j.most
	if !j.quiet {
		o.Search.Progress = func(p autotune.Progress) {
			fmt.Fprintf(stderr, "\r%-4s %-8s %3d/%-3d %-24s %6.1fs ", p.Problem, p.Stage, p.Done, p.Total, p.Point, p.Elapsed.Seconds())
			if p.Stage == "measure" && p.Done == p.Total {
				fmt.Fprint(stderr, "\r", strings.Repeat(" ", 60), "\r")
			}
		}
	}
	return o
}

// write makes the files that were asked for.
func (j job) write(ctx context.Context, plan *tune.Plan, stdout io.Writer) error {
	if j.choices != "" {
		if err := autotune.UpdateFile(ctx, j.choices, func(f *autotune.File) error { return plan.Put(f) }); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "choices        %s\n", j.choices)
	}
	if j.plot != "" {
		if err := drawPlan(plan, j.plot); err != nil {
			return fmt.Errorf("drawing %s: %w", j.plot, err)
		}
		fmt.Fprintf(stdout, "picture        %s\n", j.plot)
	}
	return nil
}

// makeLayer makes the layer as any program would and says what that took.
func makeLayer(ctx context.Context, dev driver.Device, c *cache.Cache, j job, start time.Time, stdout io.Writer) error {
	at := time.Now()
	opts := []moe.Option{moe.WithCache(c)}
	if j.forward {
		opts = append(opts, moe.WithoutBackward())
	}
	l, err := moe.New(ctx, dev, j.config, opts...)
	if err != nil {
		return err
	}
	took := time.Since(at)
	counts := map[jit.Origin]int{}
	for _, o := range l.Origins() {
		counts[o]++
	}
	tuned := 0
	for _, o := range l.ChosenBy() {
		if o == autotune.Tuned {
			tuned++
		}
	}
	fmt.Fprintf(stdout, "moe.New        %v: %d of %d products tuned; %d kernels compiled, %d from the cache\n",
		took.Round(100*time.Microsecond), tuned, len(l.ChosenBy()), counts[jit.Compiled], counts[jit.Cached])
	fmt.Fprintf(stdout, "in all         %v\n", time.Since(start).Round(time.Millisecond))
	return nil
}
