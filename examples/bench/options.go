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
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// options are the flags.
type options struct {
	device, cache string
	passName      string
	passes        []pass
	element       moe.Type
	rows          []spec.Row              // empty: the device's own default
	call          func(spec.Row) spec.Row // the default with -tokens
	kinds         []string                // of routing
	warm          time.Duration
	repeats       int
	timeout       time.Duration
	full          bool
	json, plot    string
	list          bool // was printed
	withPoints    bool
	withFit       bool
	withStartup   bool
	withDecode    bool
	batches       []int // tokens of -decode
	withTurns     bool
	withRounding  bool
	round         spec.Rounding // of -rounding
	fitFrom       []string      // report files
}

// stdoutName as the -json file is standard output.
const stdoutName = "-"

// parse reads the flags. Help and the list of sizes go to stdout.
func parse(args []string, stdout io.Writer) (o options, err error) {
	o.batches = []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512}
	f := program.Flags()
	device, cache, sizes := command.DeviceFlag(f), command.CacheFlag(f), command.SizeFlags(f, true)
	f.StringVar(&o.passName, "pass", "forward", "what to measure: "+passNames()+"; both is forward, then backward")
	f.Func("type", "the layers' `type`: bf16 or f16 (default bf16)", o.setType)
	f.Func("routing", "beside the router's: all, or some of "+routingNames(), func(list string) (err error) {
		o.kinds, err = parseRouting(list)
		return err
	})
	f.DurationVar(&o.warm, "warm", 200*time.Millisecond, "load before each measurement")
	f.IntVar(&o.repeats, "repeats", 24, "back-to-back repeats of each measurement")
	f.DurationVar(&o.timeout, "timeout", 3*time.Minute, "longest time of one row, on the emulated device too")
	f.BoolVar(&o.full, "full", false, "also with L2 flushed, on a rested chip, and after 2 s of sustained load")
	f.StringVar(&o.json, "json", "", "write everything measured to this file; - is standard output, the table then goes to standard error")
	f.StringVar(&o.plot, "plot", "", "write pictures: NAME.png or NAME.svg, bars by row, and NAME-kernels.png, time by kernel; with -decode the share of bandwidth by tokens")
	f.BoolVar(&o.withPoints, "points", false, "measure tile points of the pass's products, at least six each")
	f.BoolVar(&o.withFit, "fit", false, "-points, and fit the cost model's constants to them")
	f.BoolVar(&o.withStartup, "startup", false, "measure moe.New with an empty cache, with a filled one, and once loaded")
	f.BoolVar(&o.withDecode, "decode", false, "measure inference over few tokens: layers that take turns in a graph, routing included, by share of the memory's bandwidth")
	f.BoolVar(&o.withTurns, "turns", false, "instead of measuring, queue as many passes as each line of standard input says, and answer with the host's microseconds of each, a list of JSON: for a program that takes turns with this one")
	f.Func("batches", "with -decode: `tokens` of a call, with commas (default 1 to 512 in powers of two)", o.setBatches)
	f.BoolVar(&o.withRounding, "rounding", false, "measure token rounding beside plain top-K, both passes, routing included, with the padding that it saves; without sizes over 64 to 512 experts")
	o.round = spec.Rounding{Rule: spec.RoundNearest}
	f.Func("round", "with -rounding: the `rule` (default nearest)", func(rule string) (err error) {
		o.round.Rule, err = spec.ParseRoundingRule(rule)
		return err
	})
	f.IntVar(&o.round.Tile, "round-tile", 0, "with -rounding: counts become multiples of this (default 128)")
	f.Func("fit-from", "only fit, to the points of this -json file of an earlier run; may be given again", func(name string) error {
		o.fitFrom = append(o.fitFrom, name)
		return nil
	})
	if err := program.Parse(f, args, stdout); err != nil {
		return o, err
	}
	if err := together(f); err != nil {
		return o, err
	}
	o.device, o.cache, o.list, o.call = *device, *cache, sizes.Listed(stdout), sizes.Call
	if o.withDecode { // its calls have the tokens of -batches
		o.rows = sizes.Rows()
	} else if o.rows, err = sizes.Calls(); err != nil {
		return o, err
	}
	return o, o.check()
}

// alone are the flags that have the program do something else than measure passes,
// each with those that then have no part.
var alone = []struct{ flag, without string }{
	{"decode", "pass routing full points fit startup turns rounding fit-from"},
	{"rounding", "pass routing full points fit startup turns fit-from"},
	{"turns", "routing full points fit startup json plot fit-from"},
	{"fit-from", "device pass type routing warm repeats timeout full json plot points fit startup row rows shape tokens"},
}

// parts are flags that say how another one's work goes.
var parts = map[string]string{"batches": "decode", "round": "rounding", "round-tile": "rounding"}

// together refuses flags of which one would be ignored.
func together(set *flag.FlagSet) error {
	given := map[string]bool{}
	set.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for _, a := range alone {
		for _, name := range strings.Fields(a.without) {
			if given[a.flag] && given[name] {
				return command.Usagef("-%s has no part in -%s: want one of them", name, a.flag)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if given[name] && !given[parts[name]] {
			return command.Usagef("-%s is of -%s, which is not given", name, parts[name])
		}
	}
	return nil
}

// check looks at the flags' values.
func (o *options) check() error {
	list, ok := passLists[o.passName]
	if !ok {
		return command.Usagef("-pass %s, must be one of %s", o.passName, passNames())
	}
	for _, name := range list {
		o.passes = append(o.passes, passes[name])
	}
	if o.repeats < 1 || o.warm < 0 || o.timeout <= 0 {
		return command.Usagef("-repeats %d, -warm %v, -timeout %v: must be at least 1, not negative, positive", o.repeats, o.warm, o.timeout)
	}
	if o.withRounding && o.element != moe.BF16 {
		return command.Usagef("-type %v stands beside -rounding, which measures bf16", o.element)
	}
	if err := o.round.Check(); err != nil {
		return command.Usagef("-round, -round-tile: %v", err)
	}
	o.withPoints = o.withPoints || o.withFit
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

// setBatches reads the numbers of tokens of -decode.
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

// setType reads the type of the layers.
func (o *options) setType(name string) error {
	for _, t := range []moe.Type{moe.BF16, moe.F16} {
		if name == t.String() {
			o.element = t
			return nil
		}
	}
	return fmt.Errorf("%q must be %v or %v", name, moe.BF16, moe.F16)
}

// typed are rows of layers in the type that is asked for, which their names say.
func (o *options) typed(rows ...spec.Row) []spec.Row {
	if o.element == moe.BF16 {
		return rows
	}
	rows = slices.Clone(rows)
	for i := range rows {
		c := &rows[i].Config
		rows[i].Name, c.Type, c.Logits = rows[i].Name+" f16", moe.F16, moe.LogitsF16
	}
	return rows
}

// sizes are the rows to run. Without any flag it is one that the device is up to.
func (o *options) sizes(gpu bool) ([]spec.Row, error) {
	switch {
	case len(o.rows) > 0:
		return o.typed(o.rows...), nil
	case gpu:
		r, err := command.Row("7B n=256")
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

// emulatedRow is what the emulated device measures in seconds.
var emulatedRow = spec.Row{Name: "small", Tokens: 256,
	Config: moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, TokensHint: 256}}
