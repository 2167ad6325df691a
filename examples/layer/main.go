// Command layer runs a Mixture-of-Experts layer on tensors in safetensors files, as PyTorch
// writes them.
//
//	layer -weights W.safetensors -input X.safetensors -output O.safetensors -topk K
//	      [-device cuda|emulated] [-gateup concatenated|interleaved] [-cache DIR|off]
//	layer -model DIR -layer N -input X.safetensors -output O.safetensors [...]
//	layer -model DIR -layer N -store L.safetensors
//	layer -model L.safetensors -input X.safetensors -output O.safetensors [...]
//
// With -model, the layer is layer N, counted from 0, of a published model. DIR has config.json
// and safetensors files with the model's own tensor names. Packed weights (FP8, MXFP4, NVFP4, 4
// bits of compressed-tensors, AWQ and GPTQ) stay packed. For gradients they are dequantised
// first. The command prints the assumptions about config.json, and the fields that it did not
// understand, as the command plan does.
//
// -store writes the layer to one file, with the weights in the order and the format in which
// they are loaded. -model accepts this file instead of DIR.
//
// Sizes come from the files. All tensors are row-major. All are BF16 or all are F16, as the
// router or the model is:
//
//	weights  router.weight    [E, d]
//	         experts.gate_up  [E, 2n, d], rows in the order that -gateup says,
//	                          or experts.gate and experts.up, each [E, n, d]
//	         experts.down     [E, d, n]
//	input    x                [T, d]
//	         do               [T, d], for a backward pass: the gradient of o
//	         scores, experts  [T, K] F32 and I32, both or neither: the routing, for
//	                          models with a router of their own, such as Phi-3.5
//
// The output file has o [T, d] of the same type, scores [T, K] F32 (softmax over the chosen
// logits) and experts [T, K] I32, in descending order of the scores. With do it also has
// gradients: dx [T, d], dscores [T, K] F32 (the gradient with respect to the scores), and for
// each weight a tensor of the same type, shape and layout, with "d" before the weight's name,
// such as dexperts.down. A model may have weights that a weights file cannot have. In the
// output file their names are router.bias [E] F32, experts.gate_up_bias, experts.down_bias,
// shared.gate, shared.up, shared.down, and shared.score for the gate of the shared experts.
//
// If the input has the routing, the experts run without the router. The output then has no
// routing and no gradients of the router, and dx does not include the router's part.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage. After a failure there is no new output file, and
// an older one is unchanged.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"sonicmoe/driver/open"
	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/setup"
	"sonicmoe/moe"
)

var program = command.Program{Name: "layer", Purpose: `runs a Mixture-of-Experts layer, forward and backward, on tensors of safetensors files:
  layer -weights W.safetensors -input X.safetensors -output O.safetensors -topk K [-gateup concatenated|interleaved]
  layer -model DIR -layer N -input X.safetensors -output O.safetensors
  layer -model DIR -layer N -store L.safetensors
  layer -model L.safetensors -input X.safetensors -output O.safetensors`}

func main() { program.Main(run) }

// run runs the command. On success it prints a line, and a line for each remark on the model.
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

// options holds the values of the flags.
type options struct {
	weights, input, output string
	model                  string // the model's directory, used with layer, instead of weights
	layer                  int
	isStored               bool   // model is a file that -store has written
	store                  string // the file to which the layer is written, instead of running a pass
	topK                   int
	device                 string // "" means cuda, or emulated if there is no GPU
	gateUp                 moe.GateUp
	cache                  string // "" means the user's own cache
}

// parse reads the command line. For -h it writes the help to stdout and returns flag.ErrHelp.
// All other errors are usage errors.
func parse(args []string, stdout io.Writer) (options, error) {
	var o options
	f := program.Flags()
	f.StringVar(&o.weights, "weights", "", "`file` with router.weight [E, d], experts.gate_up [E, 2n, d] (or experts.gate and experts.up, each [E, n, d]),\nexperts.down [E, d, n], all BF16 or all F16")
	f.StringVar(&o.model, "model", "", "`folder` of a published model, in place of -weights: config.json and safetensors files; or a file that -store wrote, without -layer")
	f.StringVar(&o.store, "store", "", "`file` to write the layer of -model to, as it is loaded, in place of a pass")
	f.IntVar(&o.layer, "layer", 0, "`number` of the layer of -model, from 0")
	f.StringVar(&o.input, "input", "", "`file` with x [T, d], and for a backward pass do [T, d], the gradient of o, of the weights' type;\nwith scores [T, K] F32 and experts [T, K] I32 the experts run alone, with this routing")
	f.StringVar(&o.output, "output", "", "`file` to write: o [T, d], scores [T, K] F32, experts [T, K] I32, and after a backward pass dx [T, d],\ndscores [T, K] F32 and of each weight W its gradient dW")
	f.IntVar(&o.topK, "topk", 0, "`K`, the experts of each token")
	gateUp := f.String("gateup", "concatenated", "`order` of the rows of experts.gate_up: n of gate, then n of up (concatenated), or gate and up by turns (interleaved)")
	device, cache := setup.DeviceFlag(f), setup.CacheFlag(f)
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
	if o.store != "" {
		of = nil
		for _, name := range []string{"input", "output"} {
			if given[name] {
				return o, command.Usagef("-%s and -store are given, want -store alone: it runs no pass", name)
			}
		}
		if o.model == "" {
			return o, command.Usagef("-store is %s, which needs -model", o.store)
		}
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

// ofModel checks that the flags that -model needs are given, and that no flag contradicts
// -model.
func (o *options) ofModel(given map[string]bool) error {
	switch {
	case o.model == "" && given["layer"]:
		return command.Usagef("-layer is %d, which needs -model", o.layer)
	case o.model == "":
		return nil
	case !given["layer"] && isFile(o.model):
		o.isStored = true
	case !given["layer"]:
		return command.Usagef("-layer is missing, must be the number of a layer of -model, from 0")
	}
	for _, name := range []string{"weights", "topk", "gateup"} {
		if given[name] {
			return command.Usagef("-%s and -model are given, want -model alone: the model has it", name)
		}
	}
	return nil
}

// isFile reports whether there is a file at a path that is not a folder.
func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// choose checks the values of -gateup and -device.
func (o *options) choose(gateUp string, deviceGiven bool) error {
	if o.gateUp = moe.GateUp(gateUp); gateUp != "concatenated" && gateUp != "interleaved" {
		return command.Usagef("-gateup is %q, must be concatenated or interleaved", gateUp)
	}
	if deviceGiven && o.device == "" {
		return command.Usagef("-device is empty, must be one of %s", strings.Join(open.Names(), ", "))
	}
	return nil
}
