// Package attack has the lengths of attacks, and hostile files for every command that
// takes a path.
//
// An attack is a test of the package that it attacks: its inputs are drawn or hostile, and
// it fails on a wrong answer, a panic, a hang or a leak. It takes seconds. With
// SONICMOE_LONG it runs at full length. .ci/reliability.md lists the attacks.
package attack

import "os"

// Rounds returns an attack's length: few in CI, full with SONICMOE_LONG.
func Rounds(few, full int) int {
	if os.Getenv("SONICMOE_LONG") != "" {
		return full
	}
	return few
}
