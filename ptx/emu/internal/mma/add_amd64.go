package mma

import "golang.org/x/sys/cpu"

// level is the widest vector code that this CPU supports; tests lower it.
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

// work holds the arguments of the assembly.
type work struct {
	registers *uint32 // of slot 0
	slots     *int32
	quads     int64 // registers/4
	// a points to the warp's first 8 rows; the other 8 rows are rowBytes further.
	a         *uint32
	aExponent *int16
	b         *uint32
	bExponent *int16
	depth     int64
	bias      int64 // 127 + the format's fraction bits
	keep      int64
	left      *bool
}

// add512 and add256 perform Add, except for the registers that they mark in left because an
// exponent is out of the vector code's range. They report whether they marked none.
func add512(w *work) bool

//go:noescape
func add256(w *work) bool

// addVector performs Add, except for the registers that it marks in left. It reports whether it
// marked none.
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
