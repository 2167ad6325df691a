package pipeline

import "sonicmoe/ptx"

// Shared hands out the CTA's dynamic shared memory, front to back.
type Shared struct {
	k    *ptx.Kernel
	base ptx.Shared
	used int
}

// NewShared starts at the front of k's dynamic shared memory, which is
// aligned to 1024 bytes.
func NewShared(k *ptx.Kernel) *Shared { return &Shared{k: k, base: k.SharedBase()} }

// Take reserves bytes, aligned (a power of two up to 1024).
func (s *Shared) Take(bytes, align int) ptx.Shared {
	s.used = (s.used + align - 1) / align * align
	at := s.base.At(s.used)
	s.used += bytes
	return at
}

// Bytes is how much has been taken: what a launch must ask for.
func (s *Shared) Bytes() int { return s.used }
