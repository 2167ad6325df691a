// Package hook gives package moe/tools what package moe does not export.
package hook

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
)

// Sources emits the kernels that moe.New compiles for a target. Package moe sets
// it; opts is a []moe.Option.
var Sources func(t driver.Target, c spec.Config, opts any) ([]jit.Source, error)
