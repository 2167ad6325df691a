package spec

// GateUp says where W1 holds the gate and the up of a neuron. The layouts "concatenated" and
// "interleaved" have the same shape, so the caller must name the layout. GateUp is not used for
// activations without a gate, where W1 is [E, n, d].
//
//	"concatenated"  rows 0..n-1 of an expert are gate, rows n..2n-1 are up; the zero
//	                value "" means "concatenated"
//	"interleaved"   row 2j is gate j, row 2j+1 is up j
//	"apart"         two tensors, as in Mixtral's checkpoints: W1 [E, n, d] is gate
//	                and W3 [E, n, d] is up
type GateUp string

// These are the layouts of gate and up.
const (
	Concatenated GateUp = ""
	Interleaved  GateUp = "interleaved"
	Apart        GateUp = "apart"
)

// GateUps lists the layouts in the order of their numbers in sonicmoe.h.
var GateUps = []GateUp{"concatenated", Interleaved, Apart}

// String returns the word of the layout.
func (g GateUp) String() string { return text(GateUps, g) }

// GateRow returns the row of an expert's W1 that is the gate of neuron j. Rows are 0..2n-1, and
// neurons 0..n-1. With Apart, rows 0..n-1 are rows of W1 and rows n..2n-1 are rows of W3.
func (g GateUp) GateRow(j, n int) int {
	if g == Interleaved {
		return 2 * j
	}
	return j
}

// UpRow returns the row of an expert's W1 that is the up of neuron j. Rows are numbered as for
// [GateUp.GateRow].
func (g GateUp) UpRow(j, n int) int {
	if g == Interleaved {
		return 2*j + 1
	}
	return n + j
}
