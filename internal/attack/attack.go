// Package attack scales the length of attack tests, and attacks every command that takes a path
// with hostile files.
//
// An attack is a test in the package that it attacks. Its inputs are random or hostile, and it
// fails on a wrong answer, a panic, a hang or a leak. It takes seconds, or runs at full length
// if SONICMOE_LONG is set. .ci/reliability.md lists the attacks.
package attack

import "os"

// Rounds returns the number of rounds of an attack: few, or full if SONICMOE_LONG is set.
func Rounds(few, full int) int {
	if os.Getenv("SONICMOE_LONG") != "" {
		return full
	}
	return few
}
