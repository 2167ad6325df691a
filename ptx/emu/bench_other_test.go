//go:build !unix

package emu

// cpuSeconds is not known here.
func cpuSeconds() float64 { return 0 }
