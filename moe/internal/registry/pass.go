package registry

import "sonicmoe/internal/spec"

// Pass describes a pass of a layer that runs a kernel. To check a tiling of the kernel's product,
// tuning runs the pass and compares its outputs.
type Pass struct {
	// Name is the name of the pass in errors. Passes with the same name are the same pass.
	Name string
	// Backward reports whether the pass is a backward pass, which follows a forward pass of the
	// same layer.
	Backward bool
	// Given reports whether the caller always gives experts and scores. RoutedOnly reports whether
	// the router always chooses them. If both are false, the pass can run either way.
	Given, RoutedOnly bool
	// Outputs are the outputs of the pass that depend on the kernel. A tensor that a layer does not
	// have is left out. A gradient that the same kernel also writes is added.
	Outputs []spec.TensorID
	// F32 and Accumulate are the mode of the gradients of weights.
	F32, Accumulate bool
}

// Training is the forward pass that saves H for backward. Inference is the forward pass that does
// not save H.
var (
	Training  = Pass{Name: "training", Outputs: []spec.TensorID{spec.TensorO, spec.TensorH, spec.TensorScores, spec.TensorExpertIDs}}
	Inference = Pass{Name: "inference", Outputs: []spec.TensorID{spec.TensorO, spec.TensorScores, spec.TensorExpertIDs}}
)
