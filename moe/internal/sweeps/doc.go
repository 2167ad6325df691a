// Package sweeps has only tests. They run whole layers many times, once for each instruction or for
// each order of execution that they check. They are separate from the tests of package moe, so that
// each package stays within the time limit of go test.
package sweeps
