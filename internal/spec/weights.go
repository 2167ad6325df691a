package spec

// GateUp says where gate and up of one neuron lie in W1. Nothing can tell the
// two apart by shape, so it is said, never guessed. An activation without a gate
// has neither: its W1 is [E, n, d].
type GateUp uint8

const (
	// Concatenated: rows 0..n-1 of an expert are gate, rows n..2n-1 are up.
	Concatenated GateUp = iota
	// Interleaved: row 2j is gate j, row 2j+1 is up j.
	Interleaved
	// Apart: two tensors. W1 [E, n, d] is gate and W3 [E, n, d] is up, as
	// Mixtral's checkpoints have them.
	Apart
)

var gateUpNames = []string{"concatenated", "interleaved", "apart"}

// String gives the layout's name.
func (g GateUp) String() string { return name("GateUp", gateUpNames, g) }

// GateRow is the row of W1 (of 2n, within one expert) that holds neuron j's
// gate; j is in 0..n-1. With Apart it is the row of W1 and W3 one after the
// other.
func (g GateUp) GateRow(j, n int) int {
	if g == Interleaved {
		return 2 * j
	}
	return j
}

// UpRow is the row of W1 (of 2n, within one expert) that holds neuron j's up.
func (g GateUp) UpRow(j, n int) int {
	if g == Interleaved {
		return 2*j + 1
	}
	return n + j
}

// WeightOrder is the order of an expert weight's last two dimensions. It holds
// for W1, W3 and W2; router and shared experts are [out, in] with either.
type WeightOrder uint8

const (
	// OutIn: W1 [E, 2n, d] and W2 [E, d, n], as torch.nn.Linear keeps weights.
	OutIn WeightOrder = iota
	// InOut: W1 [E, d, 2n] and W2 [E, n, d], as gpt-oss and Llama-4 keep them.
	InOut
)

var weightOrderNames = []string{"out-in", "in-out"}

// String gives the order's name.
func (o WeightOrder) String() string { return name("WeightOrder", weightOrderNames, o) }
