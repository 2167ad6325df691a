// Command layer runs a Mixture-of-Experts layer on tensors of one's own, kept
// in safetensors files as PyTorch writes them.
//
//	layer -weights W.safetensors -input X.safetensors -output O.safetensors -topk K
//	      [-device cuda|emulated] [-gateup concatenated|interleaved] [-cache DIR|off]
//	layer -model DIR -layer N -input X.safetensors -output O.safetensors [...]
//
// With -model the layer is number N, from 0, of a published model: DIR has its
// config.json and its safetensors files, whose tensors go by the model's own
// names: router, experts, biases, shared experts. Gradients of weights have the
// names below, and of what only models have router.bias [E] F32,
// experts.gate_up_bias, experts.down_bias, shared.gate, shared.up, shared.down and
// shared.score, the shared experts' own gate.
//
// Sizes come from the files, all of whose tensors are BF16, or all F16, as the
// router's or the model is, row-major:
//
//	weights  router.weight    [E, d]
//	         experts.gate_up  [E, 2n, d], rows in the order that -gateup says,
//	                          or experts.gate and experts.up, each [E, n, d]
//	         experts.down     [E, d, n]
//	input    x                [T, d]
//	         do               [T, d], for a backward pass: the gradient of o
//
// The output file holds o [T, d] of that type, scores [T, K] F32 (softmax over the
// chosen logits) and experts [T, K] I32, by falling score. With do it also
// holds the gradients: dx [T, d], dscores [T, K] F32 (of the scores as if
// they were inputs), and of each tensor of the weights one of its name after a
// "d", such as dexperts.down, of the same type, shape and layout.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage. When it fails nothing is left
// in place of the output, and an older output stays as it was.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"sonicmoe/driver/open"
	"sonicmoe/examples/internal/interrupt"
	"sonicmoe/moe"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// Exit codes.
const (
	exitDone = iota
	exitFailed
	exitUsage
)

// run is the command: it writes one line to stdout when all went well, and one
// to stderr for what did not.
func run(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return exitDone
	}
	if err == nil {
		// An interrupt ends the work in order, so that the unfinished output goes.
		ctx, stop := interrupt.Context()
		defer stop()
		var line string
		if line, err = execute(ctx, o, stderr); err == nil {
			fmt.Fprintln(stdout, line)
			return exitDone
		}
	}
	fmt.Fprintln(stderr, "layer:", err)
	var wrong *usageError
	if errors.As(err, &wrong) {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	return exitFailed
}

const usage = `layer runs a Mixture-of-Experts layer, forward and backward, on tensors of safetensors files.

usage: layer -weights W.safetensors -input X.safetensors -output O.safetensors -topk K
             [-device cuda|cuda:N|emulated] [-gateup concatenated|interleaved] [-cache DIR|off]
       layer -model DIR -layer N -input X.safetensors -output O.safetensors [-device …] [-cache …]
  -weights  router.weight [E, d], experts.gate_up [E, 2n, d] (or experts.gate and experts.up,
            each [E, n, d]), experts.down [E, d, n], all BF16 or all F16
  -model    a published model's folder: config.json and safetensors files; -layer counts from 0
  -input    x [T, d], and for a backward pass do [T, d], the gradient of o, of the weights' type
  -output   is written: o [T, d], scores [T, K] F32, experts [T, K] I32, and after a backward
            pass dx [T, d], dscores [T, K] F32 and of each weight W its gradient dW
  -topk     K, the experts of each token
  -device   where to run; by default the first GPU, or the emulated device if there is none
  -gateup   the rows of experts.gate_up: n of gate, then n of up (concatenated, the default),
            or gate and up by turns (interleaved)
  -cache    a directory for compiled kernels, or off; by default the user's own
`

// usageError is a command line that makes no sense, whatever the files hold.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usageErrorf(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// options are the command line.
type options struct {
	weights, input, output string
	model                  string // in place of weights, with layer
	layer                  int
	topK                   int
	device                 string // "" is cuda, or emulated where there is none
	gateUp                 moe.GateUp
	cache                  string // "" is the user's own
}

// parse reads the command line. Errors: *usageError, flag.ErrHelp.
func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("layer", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.weights, "weights", "", "")
	f.StringVar(&o.model, "model", "", "")
	f.IntVar(&o.layer, "layer", 0, "")
	f.StringVar(&o.input, "input", "", "")
	f.StringVar(&o.output, "output", "", "")
	f.IntVar(&o.topK, "topk", 0, "")
	f.StringVar(&o.device, "device", "", "")
	gateUp := f.String("gateup", moe.Concatenated.String(), "")
	f.StringVar(&o.cache, "cache", "", "")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return o, err
	} else if err != nil {
		return o, usageErrorf("%v", err)
	}
	if f.NArg() > 0 {
		return o, usageErrorf("%q is no flag, all arguments are", f.Arg(0))
	}
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	of := []struct{ name, value, what string }{
		{"weights", o.weights, "the file of the weights"},
		{"input", o.input, "the file of the tokens"},
		{"output", o.output, "the file to write"},
	}
	if o.model != "" {
		of = of[1:]
	}
	for _, need := range of {
		if need.value == "" {
			return o, usageErrorf("-%s is missing, must be %s", need.name, need.what)
		}
	}
	if err := o.ofModel(given); err != nil {
		return o, err
	}
	if o.model == "" && !given["topk"] {
		return o, usageErrorf("-topk is missing, must be the number of experts of each token")
	}
	if o.model == "" && o.topK < 1 {
		return o, usageErrorf("-topk is %d, must be at least 1", o.topK)
	}
	return o, o.choose(*gateUp, given["device"])
}

// ofModel checks that a model's layer is asked for in full, and by nothing else.
func (o *options) ofModel(given map[string]bool) error {
	switch {
	case o.model == "" && given["layer"]:
		return usageErrorf("-layer is %d, must be without, or with -model", o.layer)
	case o.model == "":
		return nil
	case !given["layer"]:
		return usageErrorf("-layer is missing, must be the number of a layer of -model, from 0")
	}
	for _, name := range []string{"weights", "topk", "gateup"} {
		if given[name] {
			return usageErrorf("-%s stands beside -model, which says it, must be left out", name)
		}
	}
	return nil
}

// choose checks what is one of a few words.
func (o *options) choose(gateUp string, deviceGiven bool) error {
	switch gateUp {
	case moe.Concatenated.String():
		o.gateUp = moe.Concatenated
	case moe.Interleaved.String():
		o.gateUp = moe.Interleaved
	default:
		return usageErrorf("-gateup is %q, must be %v or %v", gateUp, moe.Concatenated, moe.Interleaved)
	}
	if deviceGiven && o.device == "" {
		return usageErrorf("-device is empty, must be one of %s", strings.Join(open.Names(), ", "))
	}
	return nil
}
