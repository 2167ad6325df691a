//go:build amd64

package cpu

import (
	"os"
	"strings"
	"testing"
)

// The operating system's list of features agrees.
func TestAgainstKernel(t *testing.T) {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Skip(err)
	}
	_, rest, _ := strings.Cut(string(info), "\nflags")
	line, _, _ := strings.Cut(rest, "\n")
	has := func(names ...string) bool {
		for _, n := range names {
			if !strings.Contains(line+" ", " "+n+" ") {
				return false
			}
		}
		return true
	}
	if want := has("avx2", "fma"); AVX2 != want {
		t.Errorf("AVX2 is %v, the kernel says %v", AVX2, want)
	}
	if want := has("avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl"); AVX512 != want {
		t.Errorf("AVX512 is %v, the kernel says %v", AVX512, want)
	}
}
