package emu

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/bits"
)

// Layout of the shared window of a CTA. In a cluster, a shared address has the CTA's rank in bits
// 24 and above.
const (
	sharedBase     = 0x400 // the driver reserves the first KiB of the window
	sharedGroups   = 0x120 // end of the reserved bytes that cooperative groups use; they begin at 0
	sharedRankBit  = 24
	sharedOffset   = 1<<sharedRankBit - 1
	sharedMaxBytes = 227 << 10 // largest size of static and dynamic shared memory together
	sharedUnit     = 128       // unit of %total_smem_size
	sharedAlign    = 16        // unit of %aggr_smem_size
)

// sharedMemory is the shared memory of one CTA. Its fields are indexed by the offset in the window.
type sharedMemory struct {
	kernel   *Kernel // for names in messages
	bytes    []byte
	start    uint32   // offset of the first byte that the kernel may access
	written  []uint64 // one bit for each byte: set if the byte has been written
	barriers []uint64 // one bit for each 8 bytes: set if an mbarrier object is there
	mbar     mbarrierTable
	proxy    proxyState
	shadow   []*shadowPage // records of accesses for the race checks, nil for pages without one
}

func (s *sharedMemory) reset(k *Kernel, bytes int) {
	s.kernel = k
	size := sharedBase + bytes
	s.bytes = sized(s.bytes, size)
	s.written = sized(s.written, size/64+2)
	s.barriers = sized(s.barriers, size/512+2)
	fillBytes(s.bytes, poison)
	clear(s.written)
	clear(s.barriers)
	s.mbar = mbarrierTable{}
	s.clearShadow()
	s.start = sharedBase
	if k.reserved {
		s.start = 0
		s.markWritten(0, sharedBase)
	}
}

// clearShadow forgets all accesses. It keeps the pages for the next CTA.
func (s *sharedMemory) clearShadow() {
	for _, page := range s.shadow {
		if page != nil {
			*page = shadowPage{}
		}
	}
}

// shadowWords returns the records of the words that have been accessed, and of other words of their
// pages, with the offsets of the words.
func (s *sharedMemory) shadowWords() iter.Seq2[uint32, *shadowWord] {
	return func(yield func(uint32, *shadowWord) bool) {
		for p, page := range s.shadow {
			if page == nil {
				continue
			}
			for i := range page {
				if !yield(uint32(p*pageBytes+4*i), &page[i]) {
					return
				}
			}
		}
	}
}

// maskOf returns a mask in which n bits are 1, from bit `at` on. n is at most 64.
func maskOf(at, n uint32) uint64 { return (1<<n - 1) << at }

// eachWord calls visit for each 64-bit word of a bitmap that belongs to the byte range. visit gets
// the word's index, the range's first bit in it and the number of bits. eachWord stops if visit
// returns false.
func eachWord(offset, n uint32, visit func(word, at, n uint32) bool) bool {
	for n > 0 {
		at := offset & 63
		k := min(64-at, n)
		if !visit(offset>>6, at, k) {
			return false
		}
		offset, n = offset+k, n-k
	}
	return true
}

// markWritten records that the bytes have been written.
func (s *sharedMemory) markWritten(offset, n uint32) {
	if offset&63+n <= 64 {
		s.written[offset>>6] |= maskOf(offset&63, n)
		return
	}
	eachWord(offset, n, func(word, at, n uint32) bool {
		s.written[word] |= maskOf(at, n)
		return true
	})
}

// unwritten returns the first byte of a range that has not been written, if there is one.
func (s *sharedMemory) unwritten(offset, n uint32) (at uint32, found bool) {
	if offset&63+n <= 64 {
		m := maskOf(offset&63, n)
		if s.written[offset>>6]&m == m {
			return 0, false
		}
	}
	found = !eachWord(offset, n, func(word, bit, n uint32) bool {
		if miss := maskOf(bit, n) &^ s.written[word]; miss != 0 {
			at = word<<6 + uint32(bits.TrailingZeros64(miss))
			return false
		}
		return true
	})
	return at, found
}

// barrierIn returns the offset of an mbarrier object in a range of bytes, if there is one.
func (s *sharedMemory) barrierIn(offset, n uint32) (at uint32, found bool) {
	if len(s.mbar) == 0 {
		return 0, false
	}
	for g := offset / 8; g <= (offset+n-1)/8; g++ {
		if s.barriers[g/64]>>(g%64)&1 == 1 {
			return g * 8, true
		}
	}
	return 0, false
}

func (s *sharedMemory) setBarrier(offset uint32, live bool) {
	g := offset / 8
	if live {
		s.barriers[g/64] |= 1 << (g % 64)
	} else {
		s.barriers[g/64] &^= 1 << (g % 64)
	}
}

// problem is a fault that does not yet have its place (instruction, lanes, CTA).
type problem struct {
	kind     FaultKind
	severity Severity
	text     string
}

func problemf(kind FaultKind, format string, args ...any) *problem {
	return &problem{kind: kind, text: fmt.Sprintf(format, args...)}
}

// check returns the reason why an access of n bytes at an offset is not allowed, or nil.
func (s *sharedMemory) check(offset, n, align uint32) *problem {
	if offset < s.start || uint64(offset)+uint64(n) > uint64(len(s.bytes)) {
		return problemf(OutOfBounds, "%d bytes at shared address %s, but the CTA has %#x to %#x", n, s.kernel.symbolic(offset), s.start, len(s.bytes))
	}
	if offset%align != 0 {
		return problemf(Misaligned, "%d bytes at shared address %s, want a multiple of %d", n, s.kernel.symbolic(offset), align)
	}
	if at, live := s.barrierIn(offset, n); live {
		return problemf(BarrierMisuse, "%d bytes at shared address %s overlap the mbarrier at %s", n, s.kernel.symbolic(offset), s.kernel.symbolic(at))
	}
	return nil
}

// checkRead does the same as check for a read. It also refuses bytes that have not been written.
func (s *sharedMemory) checkRead(offset, n, align uint32) *problem {
	if p := s.check(offset, n, align); p != nil {
		return p
	}
	if at, bad := s.unwritten(offset, n); bad {
		return problemf(UninitializedShared, "%d bytes at shared address %s: byte %#x was never written", n, s.kernel.symbolic(offset), at)
	}
	return nil
}

// readWord reads a little-endian number of 1, 2, 4 or 8 bytes.
func readWord(b []byte, size int) uint64 {
	switch size {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(b))
	case 4:
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return binary.LittleEndian.Uint64(b)
}

func writeWord(b []byte, size int, v uint64) {
	switch size {
	case 1:
		b[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(b, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(b, uint32(v))
	default:
		binary.LittleEndian.PutUint64(b, v)
	}
}
