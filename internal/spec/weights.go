package spec

// GateUp says where gate and up of a neuron are in W1. The layouts have the same
// shape, so the caller must name the layout. It is unused for activations without a
// gate, where W1 is [E, n, d].
type GateUp uint8

const (
	// Concatenated: rows 0..n-1 of an expert are gate, rows n..2n-1 are up.
	Concatenated GateUp = iota
	// Interleaved: row 2j is gate j, row 2j+1 is up j.
	Interleaved
	// Apart: two tensors, as in Mixtral's checkpoints. W1 [E, n, d] is gate and W3
	// [E, n, d] is up.
	Apart
)

var gateUpNames = []string{"concatenated", "interleaved", "apart"}

// String returns the layout's name.
func (g GateUp) String() string { return name("GateUp", gateUpNames, g) }

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

// WeightOrder is the order of the last two dimensions of W1, W3 and W2. Router and
// shared experts are [out, in] with both orders.
type WeightOrder uint8

const (
	// OutIn: W1 [E, 2n, d] and W2 [E, d, n], as in torch.nn.Linear.
	OutIn WeightOrder = iota
	// InOut: W1 [E, d, 2n] and W2 [E, n, d], as in gpt-oss and Llama-4.
	InOut
)

var weightOrderNames = []string{"out-in", "in-out"}

// String returns the order's name.
func (o WeightOrder) String() string { return name("WeightOrder", weightOrderNames, o) }
