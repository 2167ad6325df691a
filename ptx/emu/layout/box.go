package layout

import (
	"fmt"
	"iter"
)

// BoxAlign is the alignment in bytes that TMA demands for a box in shared memory.
const BoxAlign = 128

// Run is a piece of a box that is contiguous both in global and in shared memory.
type Run struct {
	Global uint64 // global address of the first byte; meaningless if out of bounds
	Shared uint32 // shared address of the first byte, after the swizzle
	Bytes  uint32
	// InBounds reports whether the run lies inside the tensor. For a run outside, a load writes
	// zeros to shared memory, and a store or reduction does nothing.
	InBounds bool
}

// CheckBox returns the reason why TMA cannot move the box at the given coordinates to or from a
// shared address, or nil. There must be one coordinate for each dimension; a coordinate may have
// any value.
func (m TensorMap) CheckBox(coordinates []int32, shared uint32) error {
	if len(coordinates) != m.Rank {
		return fmt.Errorf("tensor copy has %d coordinates, want %d, the map's rank", len(coordinates), m.Rank)
	}
	if shared%BoxAlign != 0 {
		return fmt.Errorf("tensor copy at shared address %#x, want a multiple of %d", shared, BoxAlign)
	}
	return nil
}

// Outside reports whether the whole box at the given coordinates is outside the tensor. If so, it
// returns a dimension in which no element of the box is inside.
func (m TensorMap) Outside(coordinates []int32) (dimension int, outside bool) {
	for d, c := range coordinates {
		if int64(c)+int64(m.Box[d]) <= 0 || int64(c) >= int64(m.Dims[d]) {
			return d, true
		}
	}
	return 0, false
}

// CheckChip returns an error if an H200 (driver 580) refuses the box as an illegal instruction, or
// moves it differently from what the manual says. Unlike the manual, the chip moves dimension 0 in
// pieces of 16 bytes. outside reports whether the chip would write outside the tensor.
func (m TensorMap) CheckChip(coordinates []int32, store bool) (outside bool, err error) {
	size := int64(m.Elem.Bytes())
	from, end := int64(coordinates[0])*size, int64(m.Dims[0])*size
	if from%16 != 0 {
		return false, fmt.Errorf("coordinate 0 is %d, %d bytes, want a multiple of 16 bytes", coordinates[0], from)
	}
	if !store {
		return false, nil
	}
	for d, c := range coordinates {
		if c < 0 {
			return false, fmt.Errorf("coordinate %d is %d, want 0 or more: the chip refuses stores that start before the tensor", d, c)
		}
	}
	if end%16 != 0 && from < end && from+int64(m.Box[0])*size > end {
		return true, fmt.Errorf("rows are %d bytes, want a multiple of 16: the chip would write past their end, up to byte %d", end, (end+15)/16*16)
	}
	return false, nil
}

// BoxRow is one row of a box: the elements of the box along dimension 0.
type BoxRow struct {
	Global uint64 // global address of the first byte, modulo 2^64
	shared uint32 // shared address of the first byte, before the swizzle
	bytes  uint32
	Lo, Hi uint32 // range of the row's bytes that are inside the tensor
}

// Rows calls visit for each row of the box at the given coordinates and shared address, in the
// order of shared memory, until visit returns false. The box must have passed CheckBox.
func (m *TensorMap) Rows(coordinates []int32, shared uint32, visit func(r *BoxRow) bool) {
	var index [5]uint32 // index of the row in the box; index[0] stays 0
	size := int64(m.Elem.Bytes())
	row := BoxRow{shared: shared, bytes: m.Box[0] * uint32(size)}
	first, n := int64(coordinates[0]), int64(m.Box[0])
	lo := min(max(-first, 0), n)
	hi := min(max(int64(m.Dims[0])-first, lo), n)
	for {
		global, inside := m.rowAddress(coordinates, &index)
		row.Global, row.Lo, row.Hi = global, 0, 0
		if inside {
			row.Lo, row.Hi = uint32(lo*size), uint32(hi*size)
		}
		if !visit(&row) {
			return
		}
		row.shared += row.bytes
		d := 1
		for ; d < m.Rank; d++ {
			if index[d]++; index[d] < m.Box[d] {
				break
			}
			index[d] = 0
		}
		if d >= m.Rank {
			return
		}
	}
}

// Runs yields the runs of the box at the given coordinates and shared address, in the order of
// shared memory before the swizzle. Every byte of the box is in exactly one run. The box must have
// passed CheckBox.
func (m TensorMap) Runs(coordinates []int32, shared uint32) iter.Seq[Run] {
	return func(yield func(Run) bool) {
		m.Rows(coordinates, shared, func(r *BoxRow) bool { return r.runs(m.Swizzle, yield) })
	}
}

// rowAddress returns the address of the row with the given index in the box, modulo 2^64. inside
// reports whether the row is inside the tensor in every dimension except the first.
func (m *TensorMap) rowAddress(coordinates []int32, index *[5]uint32) (address uint64, inside bool) {
	address = m.Address + uint64(int64(coordinates[0])*int64(m.Elem.Bytes()))
	inside = true
	for d := 1; d < m.Rank; d++ {
		c := int64(coordinates[d]) + int64(index[d])
		inside = inside && c >= 0 && uint64(c) < m.Dims[d]
		address += uint64(c) * m.Strides[d-1]
	}
	return address, inside
}

// runs splits a row where it enters or leaves the tensor and, with a swizzle, at every 16-byte
// chunk.
func (r *BoxRow) runs(s Swizzle, yield func(Run) bool) bool {
	at := uint32(0)
	for part, end := range [3]uint32{r.Lo, r.Hi, r.bytes} {
		for at < end {
			next := end
			if s != SwizzleNone {
				next = min(end, at/16*16+16)
			}
			run := Run{Global: r.Global + uint64(at), Shared: s.Apply(r.shared + at), Bytes: next - at, InBounds: part == 1}
			if !yield(run) {
				return false
			}
			at = next
		}
	}
	return true
}

// Load writes a row to a CTA's shared window. Parameter from holds the bytes of the row that are
// inside the tensor. The row's other bytes become zero.
func (r *BoxRow) Load(window, from []byte, s Swizzle) {
	if r.Lo == 0 && r.Hi == r.bytes {
		for at := uint32(0); at < r.bytes; at += 16 {
			*(*[16]byte)(window[s.Apply(r.shared+at):]) = [16]byte(from[at:])
		}
		return
	}
	r.runs(s, func(run Run) bool {
		to := window[run.Shared : run.Shared+run.Bytes]
		if run.InBounds {
			from = from[copy(to, from):]
		} else {
			clear(to)
		}
		return true
	})
}
