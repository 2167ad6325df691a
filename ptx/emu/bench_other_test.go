//go:build !unix

package emu

// cpuSeconds returns 0: it is not implemented for this operating system.
func cpuSeconds() float64 { return 0 }
