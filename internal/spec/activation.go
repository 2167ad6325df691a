package spec

import "slices"

// Activation is the function between an expert's two products. g and u are gate
// and up of a neuron; functions without a gate have one input x.
//
//	"swiglu"      silu(g)·u, silu(x) = x·sigmoid(x); the zero value, "", means it.
//	              With Config.Limit above 0 it is
//	              silu(min(g, limit)) · clamp(u, -limit, limit), as in DeepSeek-V4.
//	"swiglu-oai"  gpt-oss's g'·sigmoid(alpha·g') · (u' + 1), with g' = min(g, limit)
//	              and u' = clamp(u, -limit, limit)
//	"geglu-tanh"  gelu(g)·u, gelu(x) = x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
//	"geglu-erf"   gelu(g)·u, gelu(x) = x/2·(1 + erf(x/√2))
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

// The activations.
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

// Activations lists the words in the order of sonicmoe.h's numbers. Append new words,
// because C programs have the numbers. No word from ReLU on has a gate: the first new
// word with a gate must change Gated, and Config.gated of _library.py.
var Activations = []Activation{"swiglu", SwiGLUOAI, GeGLUTanh, GeGLUErf, ReGLU, ReLU, ReLU2, SiLU, GELUTanh, GELUErf}

// String returns the activation's word.
func (a Activation) String() string { return text(Activations, a) }

// Gated reports whether the activation has a gate. H has 2n columns with a gate, n
// without.
func (a Activation) Gated() bool {
	return !slices.Contains(Activations[slices.Index(Activations, ReLU):], a)
}
