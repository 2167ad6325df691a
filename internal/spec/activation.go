package spec

import "strings"

// Activation is the function between an expert's two matrix products. A gated function has two
// inputs for each neuron, the gate g and the up value u. A function without a gate has one
// input x.
//
//	"swiglu"      silu(g)·u, where silu(x) = x·sigmoid(x). The zero value "" means "swiglu".
//	              With Config.Limit above 0 it is
//	              silu(min(g, limit)) · clamp(u, -limit, limit), as in DeepSeek-V4.
//	"swiglu-oai"  gpt-oss's g'·sigmoid(alpha·g') · (u' + 1), with g' = min(g, limit)
//	              and u' = clamp(u, -limit, limit)
//	"geglu-tanh"  gelu(g)·u, where gelu(x) = x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
//	"geglu-erf"   gelu(g)·u, where gelu(x) = x/2·(1 + erf(x/√2))
//	"reglu"       max(g, 0)·u
//
// Without a gate:
//
//	"relu"       max(x, 0)
//	"relu2"      max(x, 0)²
//	"silu"       x·sigmoid(x)
//	"gelu-tanh"  gelu(x) of geglu-tanh
//	"gelu-erf"   gelu(x) of geglu-erf
type Activation string

// These are the activations.
const (
	SwiGLU    Activation = ""
	SwiGLUOAI Activation = "swiglu-oai"
	GeGLUTanh Activation = "geglu-tanh"
	GeGLUErf  Activation = "geglu-erf"
	ReGLU     Activation = "reglu"
	ReLU      Activation = "relu"
	ReLU2     Activation = "relu2"
	SiLU      Activation = "silu"
	GELUTanh  Activation = "gelu-tanh"
	GELUErf   Activation = "gelu-erf"
)

// Activations lists the activations in the order of their numbers in sonicmoe.h. Append new
// ones at the end, because compiled C programs contain the numbers.
var Activations = []Activation{"swiglu", SwiGLUOAI, GeGLUTanh, GeGLUErf, ReGLU, ReLU, ReLU2, SiLU, GELUTanh, GELUErf}

// String returns the word of the activation.
func (a Activation) String() string { return text(Activations, a) }

// Gated reports whether the activation has a gate: whether its word contains "glu" (gated linear
// unit), as also the Python package decides. The pre-activation H has 2n columns with a gate, and n
// columns without one (n = Intermediate).
func (a Activation) Gated() bool { return a == SwiGLU || strings.Contains(string(a), "glu") }
