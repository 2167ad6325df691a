package moe

import (
	"fmt"

	"sonicmoe/moe/spec"
)

// Config is a layer's shape and semantics; see [spec.Config].
type Config = spec.Config

// ArgError is a wrong field of a Config or buffer of a call.
type ArgError = spec.ArgError

// The choices of a Config: where gate and up lie in W1, the order of weights'
// dimensions, what experts compute between their products, the format of
// logits, what becomes scores of them and how these are divided by their sum,
// and what a group of experts is judged by.
type (
	GateUp      = spec.GateUp
	WeightOrder = spec.WeightOrder
	Activation  = spec.Activation
	Logits      = spec.Logits
	Score       = spec.Score
	Renorm      = spec.Renorm
	GroupScore  = spec.GroupScore
)

// The values of GateUp and WeightOrder.
const (
	Concatenated = spec.Concatenated
	Interleaved  = spec.Interleaved
	Apart        = spec.Apart
	OutIn        = spec.OutIn
	InOut        = spec.InOut
)

// The values of Activation.
const (
	SwiGLU    = spec.SwiGLU
	SwiGLUOAI = spec.SwiGLUOAI
	GeGLUTanh = spec.GeGLUTanh
	GeGLUErf  = spec.GeGLUErf
	ReGLU     = spec.ReGLU
	ReLU      = spec.ReLU
	ReLU2     = spec.ReLU2
	SiLU      = spec.SiLU
	GELUTanh  = spec.GELUTanh
	GELUErf   = spec.GELUErf
)

// The values of Logits, Score, Renorm and GroupScore.
const (
	LogitsBF16    = spec.LogitsBF16
	LogitsF32     = spec.LogitsF32
	LogitsF16     = spec.LogitsF16
	SoftmaxTopK   = spec.SoftmaxTopK
	SoftmaxAll    = spec.SoftmaxAll
	Sigmoid       = spec.Sigmoid
	SqrtSoftplus  = spec.SqrtSoftplus
	NoRenorm      = spec.NoRenorm
	RenormSum     = spec.RenormSum
	RenormClamp   = spec.RenormClamp
	GroupBest     = spec.GroupBest
	GroupSumOfTwo = spec.GroupSumOfTwo
)

// Type is a tensor's element type, Shape its type and extents. Shapes are those
// of a forward call's tensors, GradientShapes those of a backward call's.
type (
	Type           = spec.Type
	Shape          = spec.Shape
	Shapes         = spec.Shapes
	GradientShapes = spec.GradientShapes
)

// Element types.
const (
	BF16 = spec.BF16
	F32  = spec.F32
	I32  = spec.I32
	F16  = spec.F16
)

func argErrorf(field string, got any, want string, args ...any) *ArgError {
	return &ArgError{Field: field, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, args...)}
}
