// Command tune finds the fastest tilings of a layer on this machine's GPU, stores them, and
// makes the layer with them.
//
//	go run ./examples/tune -row "7B n=256"
//	go run ./examples/tune -shape 1536,256,128,8 -tokens 24576 -forward
//	go run ./examples/tune -row "7B n=256" -choices choices.json -plot points.png
//	go run ./examples/tune -row Qwen3-30B-A3B -weights fp8
//
// A second run tunes nothing and compiles nothing. Candidates are tried in worker processes
// that run this same program: the first line of main turns such a process into a worker.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"sonicmoe/autotune"
	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/picture"
	"sonicmoe/examples/internal/setup"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/strict"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/tools"
	"sonicmoe/moe/tune"
)

var program = command.Program{Name: "tune", Purpose: "finds the fastest tilings of a layer on this machine's GPU and stores them for moe.New."}

func main() {
	tune.WorkerMain()
	program.Main(run)
}

// job holds the values of the flags.
type job struct {
	config         moe.Config // the zero Config means the default layer of the device
	call           func(peers.Row) peers.Row
	device, dir    string
	weights        string // packed format of the experts' weights, or empty
	choices, plot  string
	products       string
	forward, again bool
	most           int
	budget, warm   time.Duration // a warm of 0 is the default of package tune
	histogram      []int64
	quiet          bool
	listed         bool // -list has printed the known sizes
}

// emulatedRow is a layer that the emulated device can tune in seconds.
var emulatedRow = peers.Row{Tokens: 40, Config: moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, TokensHint: 40}}

func parse(ctx context.Context, args []string, stdout io.Writer) (job, error) {
	var j job
	set := program.Flags()
	device, dir, sizes := setup.DeviceFlag(set), setup.CacheFlag(set), setup.SizeFlags(set, false)
	weights := setup.WeightsFlag(set, "")
	set.StringVar(&j.choices, "choices", "", "also write the choices to this JSON `file`, for autotune.ReadFile on all ranks")
	set.StringVar(&j.plot, "plot", "", "draw the candidates against the roofline in this .png or .svg `file`")
	set.StringVar(&j.products, "products", "", "tune only these `products`, with commas: up, down, dh, dx, dw1, dw2")
	set.BoolVar(&j.forward, "forward", false, "tune the forward pass only")
	set.BoolVar(&j.again, "again", false, "tune also products that have a valid choice")
	set.IntVar(&j.most, "most", 0, "largest `number` of candidates of each product, the best by the cost model (default: all; 3 on the emulated device)")
	set.DurationVar(&j.budget, "budget", 45*time.Second, "`time` for all products, on the emulated device for everything")
	set.Func("histogram", "route by this JSON `file`: an array with each expert's rows in real use (default: nearly uniform)", func(path string) error {
		data, err := command.ReadText(ctx, path)
		if err != nil {
			return err
		}
		if err := strict.Decode(data, &j.histogram); err != nil || j.histogram == nil {
			return errors.Join(err, errors.New("want an array of whole numbers"))
		}
		return nil
	})
	set.BoolVar(&j.quiet, "quiet", false, "print no progress; without a terminal none is printed anyway")
	if err := program.Parse(set, args, stdout); err != nil {
		return j, err
	}
	j.call, j.device, j.dir, j.weights, j.listed = sizes.Call, *device, *dir, *weights, sizes.Listed(stdout)
	rows, err := sizes.Calls()
	if err != nil {
		return j, err
	}
	switch {
	case j.budget <= 0:
		return j, command.Usagef("-budget is %v, must be positive", j.budget)
	case j.most < 0:
		return j, command.Usagef("-most is %d, must not be negative", j.most)
	case len(rows) > 0:
		j.config = rows[0].Config
	}
	if j.plot != "" {
		if err := picture.Check(j.plot); err != nil {
			return j, command.Usagef("%w", err)
		}
	}
	return j, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	start := time.Now()
	j, err := parse(ctx, args, stdout)
	if err != nil || j.listed {
		return err
	}
	if j.choices != "" {
		if err := autotune.CheckFile(ctx, j.choices); err != nil {
			return err
		}
	}
	dev, gpu, err := setup.OpenDevice(ctx, j.device, stderr)
	if err != nil {
		return err
	}
	defer dev.Close()
	defer jit.Forget(dev)
	if err := j.suit(gpu, stdout); err != nil {
		return err
	}
	c := cache.Open(cache.Options{Dir: j.dir, Logger: slog.New(slog.NewTextHandler(stderr, nil))})
	plan, err := tune.Layer(ctx, dev, j.config, j.options(c, stderr))
	if plan != nil {
		fmt.Fprint(stdout, plan)
	}
	if err != nil {
		return err
	}
	if j.histogram != nil && len(plan.Valid) > 0 {
		fmt.Fprintf(stdout, "histogram      not used for %s, which were tuned before: -again tunes them by it\n", strings.Join(plan.Valid, ", "))
	}
	if gpu {
		if err := j.store(ctx, plan, dev, stdout); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(stdout, "choices        not stored: the emulated device's times mean nothing")
	}
	if j.plot != "" {
		if err := drawPlan(plan, j.plot, gpu); err != nil {
			return fmt.Errorf("drawing %s: %w", j.plot, err)
		}
		fmt.Fprintf(stdout, "picture        %s\n", j.plot)
	}
	return makeLayer(ctx, dev, c, j, start, stdout)
}

// suit sets defaults that depend on the device.
func (j *job) suit(gpu bool, stdout io.Writer) error {
	if !gpu {
		fmt.Fprintln(stdout, "EMULATED: these times are the host's and mean nothing")
		j.warm = time.Nanosecond
		if j.device = setup.Emulated; j.most == 0 {
			j.most = 3
			fmt.Fprintf(stdout, "candidates     %d of each product: -most tries more\n", j.most)
		}
	}
	if j.config != (moe.Config{}) {
		setup.Pack(&j.config, j.weights)
		return j.ends(gpu)
	}
	row, err := emulatedRow, error(nil)
	if gpu {
		row, err = setup.Row("7B n=256")
	}
	j.config = j.call(row).Config
	setup.Pack(&j.config, j.weights)
	return errors.Join(err, j.ends(gpu))
}

// ends returns an error if tuning on the emulated device cannot end within the budget, because
// even a single run of each candidate takes longer.
func (j *job) ends(gpu bool) error {
	var work float64
	for _, p := range tools.Products() {
		if name := p.String(); (j.products == "" || slices.Contains(strings.Split(j.products, ","), name)) && !(j.forward && p.Backward()) {
			for _, w := range tools.WorkOf(name, j.config, j.config.TokensHint) {
				work += w.FLOPs
			}
		}
	}
	least := time.Duration(float64(j.most) * work / setup.EmulatedFLOPs * float64(time.Second))
	if gpu || least <= j.budget {
		return nil
	}
	return fmt.Errorf("on the emulated device this takes more than %v and the -budget is %v: tune on a GPU, or a layer such as -shape 128,64,4,2 -tokens 40",
		least.Round(time.Second), j.budget)
}

// options returns the options for package tune.
func (j job) options(c *cache.Cache, stderr io.Writer) tune.Options {
	o := tune.Options{Cache: c, Device: j.device, ForwardOnly: j.forward, Again: j.again, Budget: j.budget, Histogram: j.histogram}
	if j.products != "" {
		o.Products = strings.Split(j.products, ",")
	}
	o.Most, o.Warm = j.most, j.warm
	if !j.quiet && command.Terminal(stderr) {
		o.Progress = func(p tune.Progress) {
			fmt.Fprintf(stderr, "\r%-4s %-8s %3d/%-3d %-24s %6.1fs ", p.Product, p.Stage, p.Done, p.Total, p.Tiling, p.Elapsed.Seconds())
			if p.Stage == "measure" && p.Done == p.Total {
				fmt.Fprint(stderr, "\r", strings.Repeat(" ", 60), "\r")
			}
		}
	}
	return o
}

// store stores the choices where moe.New finds them, and in the file that -choices names.
func (j job) store(ctx context.Context, plan *tune.Plan, dev driver.Device, stdout io.Writer) error {
	if err := plan.Save(ctx, dev); err != nil || j.choices == "" {
		return err
	}
	if err := autotune.UpdateFile(ctx, j.choices, func(f *autotune.File) error { return plan.Put(f) }); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "choices        %s\n", j.choices)
	return nil
}

// makeLayer makes the layer in the same way as any program, and prints the time that this
// takes.
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
	counts := map[string]int{}
	for _, o := range l.LoadedFrom() {
		counts[o]++
	}
	tuned := 0
	for _, o := range l.ChosenBy() {
		if o == autotune.Tuned.String() {
			tuned++
		}
	}
	fmt.Fprintf(stdout, "moe.New        %v: %d of %d products tuned; %d kernels compiled, %d from the cache\n",
		took.Round(100*time.Microsecond), tuned, len(l.ChosenBy()), counts[jit.Compiled.String()], counts[jit.Cached.String()])
	fmt.Fprintf(stdout, "in all         %v\n", time.Since(start).Round(time.Millisecond))
	return nil
}
