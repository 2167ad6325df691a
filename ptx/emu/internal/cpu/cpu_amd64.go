// Package cpu detects the vector instructions that this CPU and operating system support.
package cpu

func cpuid(leaf, subleaf uint32) (eax, ebx, ecx, edx uint32)

// xgetbv returns the register states that the operating system saves.
func xgetbv() uint32

// The supported instructions.
var (
	// AVX2 includes FMA.
	AVX2 bool
	// AVX512 is the F, DQ, BW and VL parts.
	AVX512 bool
)

// Bits of CPUID and of xgetbv.
const (
	fma, osxsave, avx      = 1 << 12, 1 << 27, 1 << 28 // leaf 1, ecx
	avx2, f, dq, bw, vl    = 1 << 5, 1 << 16, 1 << 17, 1 << 30, 1 << 31
	saveVectors, saveMasks = 0x06, 0xe6 // SSE and AVX; with AVX-512's
)

func init() {
	if leaves, _, _, _ := cpuid(0, 0); leaves < 7 {
		return
	}
	_, _, c, _ := cpuid(1, 0)
	if c&osxsave == 0 || c&avx == 0 || c&fma == 0 {
		return
	}
	saved := xgetbv()
	_, b, _, _ := cpuid(7, 0)
	AVX2 = saved&saveVectors == saveVectors && b&avx2 != 0
	AVX512 = AVX2 && saved&saveMasks == saveMasks && b&f != 0 && b&dq != 0 && b&bw != 0 && b&vl != 0
}
