// Package arith computes PTX's scalar arithmetic on register bits: FP32 (float.go), the
// approximate functions (approx.go), conversions to 16-bit formats (convert.go), integers of
// every width (integer.go), and every float format and rounding mode on exact numbers
// (exact.go). Results have the chip's bits, except for the approximate functions, whose
// results are within the documented bounds.
package arith
