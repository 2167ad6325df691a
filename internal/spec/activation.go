package spec

// Activation is what an expert does between its two products. g and u are gate
// and up of one neuron; kinds without a gate have one input x.
type Activation uint8

const (
	// SwiGLU is silu(g)·u, silu(x) = x·sigmoid(x). With Config.Limit above 0 it is
	// silu(min(g, limit)) · clamp(u, -limit, limit), which is DeepSeek-V4's.
	SwiGLU Activation = iota
	// SwiGLUOAI is gpt-oss's: with g' = min(g, limit) and u' = clamp(u, -limit,
	// limit), g'·sigmoid(alpha·g') · (u' + 1).
	SwiGLUOAI
	// GeGLUTanh is gelu(g)·u, gelu(x) = x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
	GeGLUTanh
	// GeGLUErf is gelu(g)·u, gelu(x) = x/2·(1 + erf(x/√2)).
	GeGLUErf
	// ReGLU is max(g, 0)·u.
	ReGLU
	// ReLU is max(x, 0), without a gate, as all that follow.
	ReLU
	// ReLU2 is max(x, 0)².
	ReLU2
	// SiLU is x·sigmoid(x).
	SiLU
	// GELUTanh is GeGLUTanh's gelu(x).
	GELUTanh
	// GELUErf is GeGLUErf's gelu(x).
	GELUErf
)

var activationNames = []string{"swiglu", "swiglu-oai", "geglu-tanh", "geglu-erf", "reglu", "relu", "relu2", "silu", "gelu-tanh", "gelu-erf"}

// String gives the activation's name.
func (a Activation) String() string { return name("Activation", activationNames, a) }

// Gated reports whether the activation has a gate: H and W1 then have 2n
// columns and rows, else n.
func (a Activation) Gated() bool { return a <= ReGLU }
