package spec

// Activation is the function between an expert's two products. g and u are gate
// and up of a neuron; functions without a gate have one input x.
type Activation uint8

const (
	// SwiGLU is silu(g)·u, silu(x) = x·sigmoid(x). With Config.Limit above 0 it is
	// silu(min(g, limit)) · clamp(u, -limit, limit), as in DeepSeek-V4.
	SwiGLU Activation = iota
	// SwiGLUOAI is gpt-oss's g'·sigmoid(alpha·g') · (u' + 1), with g' = min(g, limit)
	// and u' = clamp(u, -limit, limit).
	SwiGLUOAI
	// GeGLUTanh is gelu(g)·u, gelu(x) = x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
	GeGLUTanh
	// GeGLUErf is gelu(g)·u, gelu(x) = x/2·(1 + erf(x/√2)).
	GeGLUErf
	// ReGLU is max(g, 0)·u.
	ReGLU
	// ReLU is max(x, 0). ReLU and all following functions have no gate.
	ReLU
	// ReLU2 is max(x, 0)².
	ReLU2
	// SiLU is x·sigmoid(x).
	SiLU
	// GELUTanh is gelu(x) of GeGLUTanh.
	GELUTanh
	// GELUErf is gelu(x) of GeGLUErf.
	GELUErf
)

var activationNames = []string{"swiglu", "swiglu-oai", "geglu-tanh", "geglu-erf", "reglu", "relu", "relu2", "silu", "gelu-tanh", "gelu-erf"}

// String returns the activation's name.
func (a Activation) String() string { return name("Activation", activationNames, a) }

// Gated reports whether the activation has a gate. H has 2n columns with a gate, n
// without.
func (a Activation) Gated() bool { return a <= ReGLU }
