// Package arith computes PTX's scalar arithmetic on register bits: FP32 (float.go), the approximate
// functions (approx.go), conversions to 16-bit formats (convert.go), integers of every width
// (integer.go), and every float format and rounding mode on exact numbers (exact.go). Results are
// bit-identical to the chip's, except for the approximate functions, which are within the
// documented bounds.
package arith
