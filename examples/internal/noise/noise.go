// Package noise fills large tensors with random values at the speed of the
// device's memory.
package noise

import (
	"math/rand/v2"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/moe"
)

// patternBytes is the size of the random pattern.
const patternBytes = 32 << 20

// Pattern holds random weights as bits of a 16-bit type.
type Pattern []uint16

// New returns a pattern of normally distributed numbers with the scale of weights, as bits of a
// layer's type.
func New(of moe.Type) Pattern {
	return reference.NewNormalOf(of, 1, reference.ScaleWeight).Values(patternBytes / 2)
}

// Fill fills tensors of the pattern's type with copies of the pattern. Each tensor begins at a
// random offset of the pattern, so that all tensors differ. Fill skips zero Tensors.
func (p Pattern) Fill(s driver.Stream, tensors ...moe.Tensor) error {
	for _, t := range tensors {
		if t.IsZero() {
			continue
		}
		if err := p.fill(s, t.Ptr, t.Shape.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

func (p Pattern) fill(s driver.Stream, to driver.DevicePtr, bytes int64) error {
	all := num.Bytes(p)
	if bytes < int64(len(all)) {
		all = all[rand.Int64N((int64(len(all))-bytes)/256+1)*256:][:bytes]
	}
	first := int64(len(all))
	if err := s.CopyToDevice(to, all); err != nil {
		return err
	}
	for at := first; at < bytes; {
		n := min(bytes-at, first-rand.Int64N(first/4+1)/256*256)
		if err := s.Copy(to+driver.DevicePtr(at), to, n); err != nil {
			return err
		}
		at += n
	}
	return nil
}
