package registry

import "sonicmoe/internal/spec"

// Pass is a pass of a layer that runs a kernel. Tuning checks the tilings of the
// kernel's product by the pass's outputs.
type Pass struct {
	// Name is the pass in errors. Passes with one name are the same pass.
	Name string
	// Backward reports whether it is a backward pass, after a forward pass of the same
	// layer.
	Backward bool
	// Given reports whether the pass is always given experts and scores, RoutedOnly
	// whether it never is. A pass with neither can run both ways.
	Given, RoutedOnly bool
	// Outputs are the tensors that the pass is asked for and that show the kernel's
	// work. A tensor that a layer does not have is left out, and a gradient comes with
	// the gradient that the same kernel writes.
	Outputs []spec.TensorID
	// F32 and Accumulate say how gradients of weights are written.
	F32, Accumulate bool
}

// Training is the forward pass that saves H for backward, Inference the forward pass
// that does not.
var (
	Training  = Pass{Name: "training", Outputs: []spec.TensorID{spec.TensorO, spec.TensorH, spec.TensorScores, spec.TensorExpertIDs}}
	Inference = Pass{Name: "inference", Outputs: []spec.TensorID{spec.TensorO, spec.TensorScores, spec.TensorExpertIDs}}
)
