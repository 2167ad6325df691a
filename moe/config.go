package moe

import "sonicmoe/moe/spec"

// Config is a layer's shape and semantics; see [spec.Config].
type Config = spec.Config

// ArgError is a wrong field of a Config or buffer of a call.
type ArgError = spec.ArgError

// GateUp is the order of W1's rows, Logits the format that top-K compares.
type (
	GateUp = spec.GateUp
	Logits = spec.Logits
)

// The values of GateUp and Logits.
const (
	Concatenated = spec.Concatenated
	Interleaved  = spec.Interleaved
	LogitsBF16   = spec.LogitsBF16
	LogitsF32    = spec.LogitsF32
)

// Type is a tensor's element type, Shape its type and extents.
type (
	Type  = spec.Type
	Shape = spec.Shape
)

// Element types.
const (
	BF16 = spec.BF16
	F32  = spec.F32
	I32  = spec.I32
)
