package mma

import "golang.org/x/sys/cpu"

// level is the widest vector code that this CPU supports. Tests set lower levels.
var level = widest()

const (
	levelGo = iota
	levelAVX2
	levelAVX512
)

func widest() int {
	switch x := cpu.X86; {
	case !x.HasAVX2 || !x.HasFMA:
		return levelGo
	case !x.HasAVX512F || !x.HasAVX512DQ || !x.HasAVX512BW || !x.HasAVX512VL:
		return levelAVX2
	}
	return levelAVX512
}

// work holds the arguments of the assembly code.
type work struct {
	registers *uint32 // slot 0 of the register bank
	slots     *int32
	quads     int64 // number of accumulator registers divided by 4
	// a points to the first 8 of the warp's 16 rows. The other 8 rows are rowBytes further.
	a         *uint32
	aExponent *int16
	b         *uint32
	bExponent *int16
	depth     int64
	bias      int64 // 127 + the number of fraction bits of the format
	keep      int64
	left      *bool
}

// add512 and add256 do the same as Add. They skip registers with an exponent that the vector code
// cannot handle, and mark them in left. They report whether there was no such register.
func add512(w *work) bool

//go:noescape
func add256(w *work) bool

// addVector does the same as Add with vector code. It skips some registers, and marks them in left.
// It reports whether it skipped none.
func addVector(registers Registers, slots []int32, a *A, warp int, b *B, keep bool, left *[maxRegisters]bool) bool {
	if level == levelGo || len(slots) == 0 {
		return addNone(slots, left)
	}
	at := a.index(16*warp, 0)
	w := work{
		registers: &registers[0][0], slots: &slots[0], quads: int64(len(slots) / 4),
		a: &a.value[at], aExponent: &a.exponent[at], b: &b.value[0], bExponent: &b.exponent[0],
		depth: int64(a.format.Depth()), bias: f32Bias + int64(a.format.Fraction), left: &left[0],
	}
	if keep {
		w.keep = -1
	}
	if level == levelAVX512 {
		return add512(&w)
	}
	return add256(&w)
}
