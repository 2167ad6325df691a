package registry

// Pass is a pass of a layer that runs a kernel: what tuning holds its product's
// tilings by.
type Pass struct {
	// Name says it in errors; those of one name are one pass.
	Name string
	// Backward is a backward pass, after a forward pass of the same layer.
	Backward bool
	// Given says that the pass is given experts and scores, RoutedOnly that it
	// never is: only layers that route themselves have it. Of neither kind is a
	// pass that goes either way.
	Given, RoutedOnly bool
	// Outputs are what it is asked for and what shows the kernel's work, as the
	// fields of moe.Forward and moe.Backward name it: "O", "DW1".
	Outputs []string
	// F32 and Accumulate say how gradients of weights are written.
	F32, Accumulate bool
}

// Training is the forward pass that keeps what backward needs, Inference the
// one that doesn't.
var (
	Training  = Pass{Name: "training", Outputs: []string{"O", "H", "Scores", "ExpertIDs"}}
	Inference = Pass{Name: "inference", Outputs: []string{"O", "Scores", "ExpertIDs"}}
)
