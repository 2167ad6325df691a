//go:build !unix

package emu

// cpuSeconds returns 0, and the benchmark then reports no CPU time: only Unix has getrusage.
func cpuSeconds() float64 { return 0 }
