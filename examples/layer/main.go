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
// shared.score, the shared experts' own gate. What of config.json was assumed, and
// what was not understood, is printed as plan prints it.
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
//	         scores, experts  [T, K] F32 and I32, both or neither: the routing, where
//	                          another than the layer's router makes it, as Phi-3.5's
//
// The output file holds o [T, d] of that type, scores [T, K] F32 (softmax over the
// chosen logits) and experts [T, K] I32, by falling score. With do it also
// holds the gradients: dx [T, d], dscores [T, K] F32 (of the scores as if
// they were inputs), and of each tensor of the weights one of its name after a
// "d", such as dexperts.down, of the same type, shape and layout. Where the routing
// is the input's the experts run alone: the output has neither it nor the router's
// gradients, and dx is without the router's part.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage. When it fails nothing is left
// in place of the output, and an older output stays as it was.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"

	"sonicmoe/driver/open"
	"sonicmoe/examples/internal/command"
	"sonicmoe/moe"
)

var program = command.Program{Name: "layer", Purpose: `runs a Mixture-of-Experts layer, forward and backward, on tensors of safetensors files:
  layer -weights W.safetensors -input X.safetensors -output O.safetensors -topk K [-gateup concatenated|interleaved]
  layer -model DIR -layer N -input X.safetensors -output O.safetensors`}

func main() { program.Main(run) }

// run is the command: it writes a line to stdout when all went well, and one for
// each remark on a model.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stdout)
	if err != nil {
		return err
	}
	text, err := execute(ctx, o, stderr)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, text)
	return nil
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

// parse reads the command line. Asked for help it writes that to stdout and gives
// flag.ErrHelp; other errors are command.Misuse.
func parse(args []string, stdout io.Writer) (options, error) {
	var o options
	f := program.Flags()
	f.StringVar(&o.weights, "weights", "", "`file` with router.weight [E, d], experts.gate_up [E, 2n, d] (or experts.gate and experts.up, each [E, n, d]),\nexperts.down [E, d, n], all BF16 or all F16")
	f.StringVar(&o.model, "model", "", "`folder` of a published model, in place of -weights: config.json and safetensors files")
	f.IntVar(&o.layer, "layer", 0, "`number` of the layer of -model, from 0")
	f.StringVar(&o.input, "input", "", "`file` with x [T, d], and for a backward pass do [T, d], the gradient of o, of the weights' type;\nwith scores [T, K] F32 and experts [T, K] I32 the experts run alone, routed so")
	f.StringVar(&o.output, "output", "", "`file` to write: o [T, d], scores [T, K] F32, experts [T, K] I32, and after a backward pass dx [T, d],\ndscores [T, K] F32 and of each weight W its gradient dW")
	f.IntVar(&o.topK, "topk", 0, "`K`, the experts of each token")
	gateUp := f.String("gateup", moe.Concatenated.String(), "`order` of the rows of experts.gate_up: n of gate, then n of up (concatenated), or gate and up by turns (interleaved)")
	device, cache := command.DeviceFlag(f), command.CacheFlag(f)
	if err := program.Parse(f, args, stdout); err != nil {
		return o, err
	}
	o.device, o.cache = *device, *cache
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
			return o, command.Usagef("-%s is missing, must be %s", need.name, need.what)
		}
	}
	if err := o.ofModel(given); err != nil {
		return o, err
	}
	if o.model == "" && !given["topk"] {
		return o, command.Usagef("-topk is missing, must be the number of experts of each token")
	}
	if o.model == "" && o.topK < 1 {
		return o, command.Usagef("-topk is %d, must be at least 1", o.topK)
	}
	return o, o.choose(*gateUp, given["device"])
}

// ofModel checks that a model's layer is asked for in full, and by nothing else.
func (o *options) ofModel(given map[string]bool) error {
	switch {
	case o.model == "" && given["layer"]:
		return command.Usagef("-layer is %d, must be without, or with -model", o.layer)
	case o.model == "":
		return nil
	case !given["layer"]:
		return command.Usagef("-layer is missing, must be the number of a layer of -model, from 0")
	}
	for _, name := range []string{"weights", "topk", "gateup"} {
		if given[name] {
			return command.Usagef("-%s stands beside -model, which says it, must be left out", name)
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
		return command.Usagef("-gateup is %q, must be %v or %v", gateUp, moe.Concatenated, moe.Interleaved)
	}
	if deviceGiven && o.device == "" {
		return command.Usagef("-device is empty, must be one of %s", strings.Join(open.Names(), ", "))
	}
	return nil
}
