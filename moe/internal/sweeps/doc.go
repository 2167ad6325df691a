// Package sweeps has only tests: they run whole layers many times, once for each instruction or
// each order of execution that they check. They are separate from the tests of package moe, so
// that each package stays within go test's time limit.
package sweeps
