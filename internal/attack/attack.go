// Package attack has the lengths of attacks, and hostile files for every command that
// takes a path.
//
// An attack is a test of the package that it attacks: its inputs are drawn, and it fails
// on a wrong answer, a panic, a hang or a leak. It takes seconds in CI. With
// SONICMOE_LONG it runs at full length:
//
//	SONICMOE_LONG=1 go test -timeout 2h ./internal/attack ./cache ./autotune ./moe ./ptx/emu -run 'Attack|...'
package attack

import "os"

// Rounds returns an attack's length: few in CI, full with SONICMOE_LONG.
func Rounds(few, full int) int {
	if os.Getenv("SONICMOE_LONG") != "" {
		return full
	}
	return few
}
