package main

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"sonicmoe/examples/bench/report"
	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/picture"
	"sonicmoe/examples/internal/setup"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// options holds the values of the flags.
type options struct {
	device, cache string
	passName      string
	passes        []pass
	element       moe.Type
	weights       string                    // format of packed weights, or empty
	rows          []peers.Row               // if empty, the default row of the device is measured
	call          func(peers.Row) peers.Row // returns a default row with the tokens of -tokens
	kinds         []string                  // kinds of routing
	warm          time.Duration
	repeats       int
	timeout       time.Duration
	full          bool
	json, plot    string
	list          bool          // -list was given, and parse has printed the sizes
	alone         time.Duration // time for which the energy of each kernel is measured; 0 is none
	withCauses    bool
	other         string // program of another build, for -against
	withPoints    bool
	pause         time.Duration // before each pass of -points
	withFit       bool
	withStartup   bool
	withDecode    bool
	batches       []int // batch sizes of -decode
	withTurns     bool
	withRounding  bool
	round         spec.Rounding // the rule of -rounding
	fitFrom       []string      // report files
	from          string        // file of measurements, which are printed and drawn again
}

// stdoutName is the value of -json for standard output.
const stdoutName = "-"

// parse parses the flags. It prints help and the list of sizes to stdout.
func parse(args []string, stdout io.Writer) (o options, err error) {
	o.batches = []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512}
	f := program.Flags()
	device, cache, sizes := setup.DeviceFlag(f), setup.CacheFlag(f), setup.SizeFlags(f, true)
	f.StringVar(&o.passName, "pass", "forward", "the `pass` to measure: "+passNames()+"; both is forward, then backward")
	f.Func("type", "the layers' `type`: bf16 or f16 (default bf16)", o.setType)
	weights := setup.WeightsFlag(f, ", in units, for -decode and passes forward and inference")
	f.Func("routing", "also measure the experts alone with rows by these `distributions`: all, or some of "+routingNames(), func(list string) (err error) {
		o.kinds, err = parseRouting(list)
		return err
	})
	f.DurationVar(&o.warm, "warm", 200*time.Millisecond, "`time` of load before each measurement")
	f.IntVar(&o.repeats, "repeats", 24, "`number` of back-to-back repeats of each measurement")
	f.DurationVar(&o.timeout, "timeout", 3*time.Minute, "longest `time` of one row, also on the emulated device")
	f.BoolVar(&o.full, "full", false, "measure also with a cold L2 cache, on a rested chip, and after 2 s of load, with the energy of a pass")
	f.DurationVar(&o.alone, "alone", 0, "measure also the energy of each large kernel alone, repeated for this `time` after as much load")
	f.StringVar(&o.other, "against", "", "measure time and energy of this program and of another build of it, the program `FILE`, in turns in steady load")
	f.BoolVar(&o.withCauses, "causes", false, "measure the energy of tensor cores, shared memory, the L2 cache, device memory and issue, each by a small kernel")
	f.StringVar(&o.json, "json", "", "write all measurements to this `file`; - is standard output, with the table on standard error")
	f.StringVar(&o.plot, "plot", "", "write pictures to `NAME`.png or .svg, bars by row, and NAME-kernels.png, time by kernel; with -decode the share of the bandwidth by batch size")
	f.BoolVar(&o.withPoints, "points", false, "measure tilings of the pass's products, at least six each")
	f.DurationVar(&o.pause, "pause", 0, "with -points: `time` without work before each pass, so that the chip is rested (default: steady load)")
	f.BoolVar(&o.withFit, "fit", false, "-points, and fit the cost model's constants to them")
	f.BoolVar(&o.withStartup, "startup", false, "measure moe.New with an empty cache, with a filled one, and once loaded")
	f.BoolVar(&o.withDecode, "decode", false, "measure inference over small batches: layers in turns in a graph, with routing, as a share of the memory bandwidth")
	f.BoolVar(&o.withTurns, "turns", false, "for a program that runs in turns with bench: read a number of passes from each line of standard input, queue them, and write the host's microseconds of each as a JSON list")
	f.Func("batches", "with -decode: `batch sizes` with commas (default 1 to 512 in powers of two)", o.setBatches)
	f.BoolVar(&o.withRounding, "rounding", false, "measure token rounding and plain top-K in turns, both passes, with routing, and the padding that rounding saves (default sizes: 64 to 512 experts)")
	o.round = spec.Rounding{Rule: spec.RoundNearest}
	f.Func("round", "with -rounding: the `rule` (default nearest)", func(rule string) error {
		o.round.Rule = spec.RoundingRule(rule)
		return o.round.Check()
	})
	f.IntVar(&o.round.Tile, "round-tile", 0, "with -rounding: `number` that divides all counts (default 128)")
	f.StringVar(&o.from, "from", "", "only print the measurements in this `file`, of -json or examples/bench/h200, and draw them with -plot")
	f.Func("fit-from", "only fit, to the points of this -json `file` of an earlier run; may be repeated", func(name string) error {
		o.fitFrom = append(o.fitFrom, name)
		return nil
	})
	if err := program.Parse(f, args, stdout); err != nil {
		return o, err
	}
	if err := together(f); err != nil {
		return o, err
	}
	o.device, o.cache, o.weights, o.list, o.call = *device, *cache, *weights, sizes.Listed(stdout), sizes.Call
	if o.withDecode { // -decode takes its batch sizes from -batches
		o.rows = sizes.Rows()
	} else if o.rows, err = sizes.Calls(); err != nil {
		return o, err
	}
	return o, o.check()
}

// alone lists the flags that measure something other than passes. Each is listed with the flags
// that cannot be combined with it.
var alone = []struct{ flag, without string }{
	{"decode", "pass routing full alone points fit startup turns rounding fit-from"},
	{"rounding", "pass routing full alone points fit startup turns fit-from"},
	{"turns", "routing full alone points fit startup json plot fit-from"},
	{"against", "weights routing warm repeats full alone causes json plot points fit startup decode rounding turns fit-from"},
	{"causes", "pass type weights routing warm repeats full alone json plot points fit startup decode rounding turns fit-from row rows shape tokens"},
	{"weights", "points fit rounding turns fit-from"},
	{"from", "device against causes pass type weights routing warm repeats timeout full alone json points fit startup decode rounding turns fit-from row rows shape tokens"},
	{"fit-from", "device pass type routing warm repeats timeout full alone json plot points fit startup row rows shape tokens"},
}

// parts maps a flag to another flag without which it has no effect.
var parts = map[string]string{"batches": "decode", "round": "rounding", "round-tile": "rounding"}

// together returns an error if flags are combined such that one of them would have no effect.
func together(set *flag.FlagSet) error {
	given := map[string]bool{}
	set.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for _, a := range alone {
		for _, name := range strings.Fields(a.without) {
			if given[a.flag] && given[name] {
				return command.Usagef("-%s and -%s are given, want one of them", name, a.flag)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if given[name] && !given[parts[name]] {
			return command.Usagef("-%s needs -%[2]s, which is not given", name, parts[name])
		}
	}
	return nil
}

// check checks the values of the flags.
func (o *options) check() error {
	list, ok := passLists[o.passName]
	if !ok {
		return command.Usagef("-pass %s, must be one of %s", o.passName, passNames())
	}
	for _, name := range list {
		o.passes = append(o.passes, passes[name])
	}
	if o.repeats < 1 || o.warm < 0 || o.timeout <= 0 || o.alone < 0 {
		return command.Usagef("-repeats %d, -warm %v, -timeout %v, -alone %v: must be at least 1, not negative, positive, not negative", o.repeats, o.warm, o.timeout, o.alone)
	}
	for _, p := range o.passes {
		if p.backward && o.weights != "" {
			return command.Usagef("-pass %s and -weights are given, want forward or inference: packed weights have no gradients", o.passName)
		}
	}
	if o.withRounding && o.element != moe.BF16 {
		return command.Usagef("-type is %v, must be bf16 with -rounding", o.element)
	}
	if err := o.round.Check(); err != nil {
		return command.Usagef("-round, -round-tile: %v", err)
	}
	o.withPoints = o.withPoints || o.withFit
	if o.pause < 0 || o.pause > 0 && !o.withPoints {
		return command.Usagef("-pause is %v, must not be negative, and needs -points or -fit", o.pause)
	}
	if o.json != "" && o.json != stdoutName {
		if err := report.CheckFile(o.json); err != nil {
			return command.Usagef("-json: %w", err)
		}
	}
	if o.plot != "" {
		return picture.Check(o.plot)
	}
	return nil
}

// setBatches parses the batch sizes of -decode.
func (o *options) setBatches(list string) error {
	o.batches = nil
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 1 {
			return fmt.Errorf("%q must be a whole number from 1", text)
		}
		o.batches = append(o.batches, n)
	}
	return nil
}

// setType parses the element type of the layers.
func (o *options) setType(name string) error {
	for _, t := range []moe.Type{moe.BF16, moe.F16} {
		if name == t.String() {
			o.element = t
			return nil
		}
	}
	return fmt.Errorf("%q must be %v or %v", name, moe.BF16, moe.F16)
}

// typed returns the rows with the element type of -type and the format of -weights, which are also
// in their names.
func (o *options) typed(rows ...peers.Row) []peers.Row {
	rows = slices.Clone(rows)
	for i := range rows {
		c := &rows[i].Config
		if o.element == moe.F16 {
			rows[i].Name, c.Type, c.Logits = rows[i].Name+" f16", moe.F16, moe.F16
		}
		if o.weights != "" {
			rows[i].Name += " " + o.weights
			setup.Pack(c, o.weights)
		}
	}
	return rows
}

// sizes returns the rows to measure. Without flags it returns one default row for the device.
func (o *options) sizes(gpu bool) ([]peers.Row, error) {
	switch {
	case len(o.rows) > 0:
		return o.typed(o.rows...), nil
	case gpu:
		r, err := setup.Row("7B n=256")
		return o.typed(o.call(r)), err
	}
	return o.typed(o.call(emulatedRow)), nil
}

func passNames() string { return strings.Join(slices.Sorted(maps.Keys(passLists)), ", ") }

func routingNames() string {
	var names []string
	for _, r := range routings {
		names = append(names, r.name)
	}
	return strings.Join(names, ",")
}

// emulatedRow is a layer that the emulated device can measure in seconds.
var emulatedRow = peers.Row{Name: "small", Tokens: 256,
	Config: moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, TokensHint: 256}}
