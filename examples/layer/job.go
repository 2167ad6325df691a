package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/safetensors"
	"sonicmoe/moe/checkpoint/weights"
)

// These are the names of the tensors in the files.
const (
	nameRouter  = "router.weight"
	nameGateUp  = "experts.gate_up"
	nameGate    = "experts.gate"
	nameUp      = "experts.up"
	nameDown    = "experts.down"
	nameX       = "x"
	nameO       = "o"
	nameScores  = "scores"
	nameExperts = "experts"

	// These names are for a backward pass.
	nameDO      = "do"
	nameDX      = "dx"
	nameDScores = "dscores"
	gradientOf  = "d" // prefix of the name of a weight's gradient
)

// source is an open file. The path is for errors.
type source struct {
	path string
	*safetensors.File
	// of is the element type of the file's tensors.
	of string
}

// job is the pass that the input files describe. All sizes are known and checked.
type job struct {
	config         moe.Config
	tokens         int
	weights, input source
	// model holds the weights of -model, which are used instead of weights.
	model *weights.Layer
	// separate reports whether gate and up are two tensors in the file.
	separate bool
	// backward reports whether the input has a gradient of the output. routed reports whether
	// the input has scores and expert ids; the experts then run without the router.
	backward, routed bool
}

// openJob opens the files and checks that they fit together. Close the job after use.
func openJob(ctx context.Context, o options) (*job, error) {
	j := &job{}
	err := j.openWeights(ctx, o)
	if err == nil {
		var x *safetensors.File
		if x, err = safetensors.Open(ctx, o.input); err != nil {
			err = fmt.Errorf("input: %w", err)
		} else {
			j.input = source{path: o.input, File: x}
		}
	}
	if err == nil {
		err = j.plan(o)
	}
	if err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return j, nil
}

func (j *job) openWeights(ctx context.Context, o options) error {
	if o.model != "" {
		var err error
		if o.isStored {
			j.model, err = weights.OpenStored(ctx, o.model)
		} else {
			j.model, err = weights.Open(ctx, o.model, o.layer)
		}
		return err
	}
	w, err := safetensors.Open(ctx, o.weights)
	if err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	j.weights = source{path: o.weights, File: w}
	return nil
}

// Close closes the files.
func (j *job) Close() error {
	var errs []error
	if j.model != nil {
		errs = append(errs, j.model.Close())
	}
	for _, s := range []source{j.weights, j.input} {
		if s.File != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}

// planModel takes the sizes from the model, and the number of tokens from the input.
func (j *job) planModel() error {
	if err := j.inputNames(); err != nil {
		return err
	}
	if word := j.model.Config.Weights; j.backward && word != "" {
		j.model.Config.Weights = ""
		j.model.Model.Quantised = fmt.Sprintf("%s: the files' weights are dequantised when they are loaded: packed weights have no gradients", word)
	}
	j.config = j.model.Config
	if err := moe.Check(j.config); err != nil {
		return fmt.Errorf("%v: %w", j.config, err)
	}
	if out := j.model.Model.Outside; len(out) > 0 && !j.routed {
		return fmt.Errorf("this model's block is more than a layer: %s; with %s [T, K] F32 and %s [T, K] I32 in addition to %s its experts run alone",
			strings.Join(out, "; "), nameScores, nameExperts, nameX)
	}
	j.input.of = dtypes[j.config.Type]
	x, err := j.input.matrix(nameX, "[T, d]", 2)
	if err != nil {
		return err
	}
	d := int64(j.config.Hidden)
	for _, name := range j.rows() {
		if err := j.input.shape(name, "[T, d], d as the model has it", x.Shape[0], d); err != nil {
			return err
		}
	}
	if err := j.checkRouting(x.Shape[0], j.config.TopK); err != nil {
		return err
	}
	if most := int64(spec.MaxRows / j.config.TopK); x.Shape[0] > most {
		return j.input.errorf(nameX, "has T = %d, must be at most %d with K = %d", x.Shape[0], most, j.config.TopK)
	}
	j.tokens = int(x.Shape[0])
	j.config.TokensHint = j.tokens
	return nil
}

// rows returns the names of the input's tensors of shape [T, d].
func (j *job) rows() []string {
	if j.backward {
		return []string{nameX, nameDO}
	}
	return []string{nameX}
}

// inputNames checks that the input has a complete set of tensors and no others.
func (j *job) inputNames() error {
	has := func(name string) bool {
		_, err := j.input.Tensor(name)
		return err == nil
	}
	j.backward, j.routed = has(nameDO), has(nameScores) || has(nameExperts)
	names := j.rows()
	if j.routed {
		names = append(names, nameScores, nameExperts)
	}
	return j.input.only(names)
}

// checkRouting checks the routing in the input, if there is one.
func (j *job) checkRouting(tokens int64, topK int) error {
	if !j.routed {
		return nil
	}
	scores, experts := j.input, j.input
	scores.of, experts.of = "F32", "I32"
	if err := scores.shape(nameScores, "[T, K]", tokens, int64(topK)); err != nil {
		return err
	}
	return experts.shape(nameExperts, "[T, K]", tokens, int64(topK))
}

// plan takes the sizes from the headers of the files and checks them.
func (j *job) plan(o options) error {
	if j.model != nil {
		return j.planModel()
	}
	if err := j.names(o); err != nil {
		return err
	}
	element := j.setType()
	router, err := j.weights.matrix(nameRouter, "[E, d]", 2)
	if err != nil {
		return err
	}
	n, err := j.intermediate(router)
	if err != nil {
		return err
	}
	x, err := j.input.matrix(nameX, "[T, d]", 2)
	if err != nil {
		return err
	}
	e, d := router.Shape[0], router.Shape[1]
	if err := j.limits(o, router, n, x); err != nil {
		return err
	}
	if err := j.weights.shape(nameDown, "[E, d, n]", e, d, n); err != nil {
		return err
	}
	if err := j.input.shape(nameX, "[T, d], d as in "+nameRouter, x.Shape[0], d); err != nil {
		return err
	}
	if j.backward {
		if err := j.input.shape(nameDO, "[T, d] as "+nameX, x.Shape[0], d); err != nil {
			return err
		}
	}
	if err := j.checkRouting(x.Shape[0], o.topK); err != nil {
		return err
	}
	j.tokens = int(x.Shape[0])
	j.config = moe.Config{
		Hidden: int(d), Intermediate: int(n), NumExperts: int(e), TopK: o.topK, Type: element, GateUp: o.gateUp, TokensHint: j.tokens,
	}
	if element == moe.F16 {
		j.config.Logits = moe.F16
	}
	return moe.Check(j.config)
}

// setType sets the type that all tensors of the files must have: F16 if the router has it, else BF16.
// Reading a tensor checks it. setType returns the type.
func (j *job) setType() spec.Type {
	element := spec.BF16
	if t, err := j.weights.Tensor(nameRouter); err == nil && t.DType == "F16" {
		element = spec.F16
	}
	j.weights.of, j.input.of = dtypes[element], dtypes[element]
	return element
}

// names checks that the files have the tensors of a layer and no others. Without this
// check, a tensor such as a bias would be ignored and the result wrong.
func (j *job) names(o options) error {
	_, err := j.weights.Tensor(nameGateUp)
	fused := err == nil
	_, noGate := j.weights.Tensor(nameGate)
	_, noUp := j.weights.Tensor(nameUp)
	j.separate = noGate == nil || noUp == nil
	if fused && j.separate {
		return j.weights.errorf(nameGateUp, "is there together with %s or %s, must be there without them", nameGate, nameUp)
	}
	need := []string{nameRouter, nameGateUp, nameDown}
	if j.separate {
		need = []string{nameRouter, nameGate, nameUp, nameDown}
	}
	if err := j.weights.only(need); err != nil {
		return err
	}
	if j.separate && o.gateUp == "interleaved" {
		return j.weights.errorf(nameGate, "is separate from %s, but -gateup is %v, must be left out or concatenated",
			nameUp, o.gateUp)
	}
	return j.inputNames()
}

// intermediate returns n, which follows from the shapes of gate and up in the file.
func (j *job) intermediate(router safetensors.Tensor) (int64, error) {
	e, d := router.Shape[0], router.Shape[1]
	if j.separate {
		gate, err := j.weights.matrix(nameGate, "[E, n, d]", 3)
		if err != nil {
			return 0, err
		}
		n := gate.Shape[1]
		if err := j.weights.shape(nameGate, "[E, n, d], E and d as in "+nameRouter, e, n, d); err != nil {
			return 0, err
		}
		return n, j.weights.shape(nameUp, "[E, n, d] as "+nameGate, e, n, d)
	}
	gateUp, err := j.weights.matrix(nameGateUp, "[E, 2n, d]", 3)
	if err != nil {
		return 0, err
	}
	rows := gateUp.Shape[1]
	if err := j.weights.shape(nameGateUp, "[E, 2n, d], E and d as in "+nameRouter, e, rows, d); err != nil {
		return 0, err
	}
	if rows%2 != 0 {
		return 0, j.weights.errorf(nameGateUp, "has %d rows for each expert, must have an even number, 2n", rows)
	}
	return rows / 2, nil
}

// limits checks the sizes against the limits of a layer. An error names the tensor from which
// the wrong size was taken.
func (j *job) limits(o options, router safetensors.Tensor, n int64, x safetensors.Tensor) error {
	const large = 1 << 30 // above every limit of a Config, and an int on every platform
	e, d := router.Shape[0], router.Shape[1]
	c := moe.Config{Hidden: int(min(d, large)), Intermediate: int(min(n, large)), NumExperts: int(min(e, large)), TopK: o.topK, GateUp: o.gateUp}
	var wrong *moe.ArgError
	if err := moe.Check(c); errors.As(err, &wrong) {
		switch wrong.Field {
		case "Config.Hidden":
			return j.weights.errorf(nameRouter, "has d = %d, must be %s", d, wrong.Want)
		case "Config.Intermediate":
			return j.weights.errorf(nameDown, "is for n = %d (by the rows of gate and up), must be %s", n, wrong.Want)
		case "Config.NumExperts":
			return j.weights.errorf(nameRouter, "has E = %d, must be %s", e, wrong.Want)
		case "Config.TopK":
			return j.weights.errorf(nameRouter, "has E = %d experts, and -topk is %d, must be %s", e, o.topK, wrong.Want)
		}
		return err
	} else if err != nil {
		return err
	}
	if most := int64(1<<31-1) / int64(o.topK); x.Shape[0] > most {
		return j.input.errorf(nameX, "has T = %d, must be at most %d with -topk %d", x.Shape[0], most, o.topK)
	}
	return nil
}

// errorf returns an error that names the file, and the tensor with its type and shape.
func (s source) errorf(name, format string, args ...any) error {
	what := fmt.Sprintf("%q", name)
	if t, err := s.Tensor(name); err == nil {
		what = fmt.Sprintf("%q %s %v", name, t.DType, t.Shape)
	}
	return fmt.Errorf("%s: tensor %s %s", s.path, what, fmt.Sprintf(format, args...))
}

// only checks that the file has exactly the tensors with these names.
func (s source) only(names []string) error {
	known := map[string]bool{}
	for _, name := range names {
		known[name] = true
		if _, err := s.Tensor(name); err != nil {
			return s.errorf(name, "is missing, the file has %s", s.list())
		}
	}
	for _, t := range s.Tensors() {
		if !known[t.Name] {
			return s.errorf(t.Name, "is not part of this layer, whose tensors are %s", strings.Join(names, ", "))
		}
	}
	return nil
}

// list returns the names of the first tensors of the file, for errors.
func (s source) list() string {
	const most = 8
	var names []string
	for _, t := range s.Tensors() {
		if len(names) == most {
			names = append(names, "...")
			break
		}
		names = append(names, fmt.Sprintf("%.80q", t.Name))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// matrix returns a tensor of the file after checking its type and rank.
func (s source) matrix(name, wantShape string, rank int) (safetensors.Tensor, error) {
	t, err := s.Tensor(name)
	if err != nil {
		return t, fmt.Errorf("%s: %w", s.path, err)
	}
	if t.DType != s.of || len(t.Shape) != rank {
		return t, s.errorf(name, "must be %s %s", s.of, wantShape)
	}
	return t, nil
}

// shape checks that a tensor has the file's type and the given extents.
func (s source) shape(name, meaning string, dims ...int64) error {
	t, err := s.matrix(name, meaning, len(dims))
	if err != nil {
		return err
	}
	for i, d := range dims {
		if t.Shape[i] != d {
			return s.errorf(name, "must be %s %v (%s)", s.of, dims, meaning)
		}
	}
	return nil
}

// shapes returns the shapes of the pass's tensors.
func (j *job) shapes() spec.Shapes { return j.config.Shapes(j.tokens) }
