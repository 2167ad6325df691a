//go:build unix

package emu

import "syscall"

// cpuSeconds returns the CPU time that this process has used.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + 1e-6*float64(t.Usec) }
	return seconds(u.Utime) + seconds(u.Stime)
}
