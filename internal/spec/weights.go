package spec

// GateUp says where gate and up of a neuron are in W1. The layouts have the same
// shape, so the caller must name the layout. It is unused for activations without a
// gate, where W1 is [E, n, d].
//
//	"concatenated"  rows 0..n-1 of an expert are gate, rows n..2n-1 are up; the zero
//	                value, "", means it
//	"interleaved"   row 2j is gate j, row 2j+1 is up j
//	"apart"         two tensors, as in Mixtral's checkpoints: W1 [E, n, d] is gate
//	                and W3 [E, n, d] is up
type GateUp string

// The layouts.
const (
	Concatenated GateUp = ""
	Interleaved  GateUp = "interleaved"
	Apart        GateUp = "apart"
)

// GateUps are the words, in the order of sonicmoe.h's numbers.
var GateUps = []GateUp{"concatenated", Interleaved, Apart}

// String returns the layout's word.
func (g GateUp) String() string { return text(GateUps, g) }

// GateRow returns the row of an expert's W1, 0..2n-1, with the gate of neuron j,
// 0..n-1. With Apart, rows 0..n-1 are W1's and rows n..2n-1 are W3's.
func (g GateUp) GateRow(j, n int) int {
	if g == Interleaved {
		return 2 * j
	}
	return j
}

// UpRow returns the row of an expert's W1 with up of neuron j, numbered as by GateRow.
func (g GateUp) UpRow(j, n int) int {
	if g == Interleaved {
		return 2*j + 1
	}
	return n + j
}
