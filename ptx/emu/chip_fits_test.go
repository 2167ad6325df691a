package emu_test

import (
	"fmt"
	"strings"

	"sonicmoe/ptx/emu"
	"sonicmoe/ptx/emu/internal/mma"
)

// fits counts, for each of several models, how many of the chip's sums the model reproduces. The
// models differ in the number of fraction bits and in the cut before rounding ([mma.Format]).
type fits struct {
	t      tileType
	models []*mma.Format
	hits   []int
	of     int
}

func (t tileType) fits() *fits {
	f := &fits{t: t}
	if t.a.integer() {
		return f
	}
	base := emu.ElementFormats[t.a.format]
	for fraction := base.Fraction - 2; fraction <= base.Fraction+2; fraction++ {
		for _, cut := range []int{0, 9, 10, 11} {
			m := *base
			m.Fraction, m.Cut = fraction, cut
			f.models = append(f.models, &m)
		}
	}
	f.hits = make([]int, len(f.models))
	return f
}

func (f *fits) count(acc uint32, a, b []uint32, chip uint32) {
	f.of++
	for i, m := range f.models {
		if f.t.model(acc, a, b, m) == chip {
			f.hits[i]++
		}
	}
}

// String lists each model with the number of sums that it reproduces.
func (f *fits) String() string {
	var s []string
	for i, m := range f.models {
		s = append(s, fmt.Sprintf("fraction %d cut %d: %d of %d", m.Fraction, m.Cut, f.hits[i], f.of))
	}
	return strings.Join(s, "; ")
}
