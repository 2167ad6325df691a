//go:build !unix

package emu

// cpuSeconds is not known on this system.
func cpuSeconds() float64 { return 0 }
