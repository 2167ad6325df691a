package emu

import "strings"

// In a sparse product A has half the elements of each row. Each 4 bits of metadata are two
// 2-bit indices, the first in the lower bits. They pick 2 of the 4 units of a chunk of the row.
// A unit is a 16-bit or 8-bit element, half a TF32 number, or two 4-bit elements.

// sparsity describes how metadata is distributed over the lanes of a warp.
type sparsity struct {
	at     int // index of the metadata operand, which precedes the selector
	k      int // k extent of a whole row
	chunk  int // elements of a chunk
	picked int // elements of a chunk that A has
	first  int // first lane of each four that provides metadata
	lanes  int // lanes of each four that provide metadata
	// ofRows reports whether a lane provides metadata of one row. Otherwise it provides
	// metadata of two rows.
	ofRows  bool
	ordered bool // the lower index must be first
}

const (
	chunkUnits  = 4
	chunkBits   = 4 // bits of metadata
	laneChunks  = 32 / chunkBits
	sparseShare = 2 // ratio of a row's elements to those that A has
)

// newSparsity returns the layout for an instruction with the given element type of A, or nil if
// the instruction is dense.
func newSparsity(in *inst, element string) *sparsity {
	for at, a := range in.form.Args {
		if a.Name != "metadata" {
			continue
		}
		_, _, k := shapeOf(in.mod("shape"))
		bits := elementBits(element)
		chunk := chunkUnits * min(max(bits, 8), 16) / bits
		lanes := 4 / int(in.form.Args[at+1].Below) // of each four lanes
		return &sparsity{at: at, k: k, chunk: chunk, picked: chunk / sparseShare, first: int(in.args[at+1].imm) * lanes, lanes: lanes,
			ofRows: bits <= 8, ordered: strings.Contains(in.form.Op, "ordered_metadata")}
	}
	return nil
}

// place returns the lane that provides the metadata of a chunk of one of a warp's 16 rows, and
// the first bit. For elements of up to a byte, a lane provides 8 chunks of one row, and odd
// lanes serve rows 8 and up. For wider elements, it provides 4 chunks of a row and, in the
// upper half, of the row 8 further down.
func (s *sparsity) place(row, chunk int) (lane, bit int) {
	lane = row%8*4 + s.first
	if s.ofRows {
		return lane + row/8 + chunk/laneChunks*2, chunk % laneChunks * chunkBits
	}
	const half = laneChunks / 2
	return lane + chunk/half, (row/8*half + chunk%half) * chunkBits
}

// picks returns, for each of a warp's 16 rows, the k of the elements that A has.
func (s *sparsity) picks(w *warp, in *inst, to func(row int) []uint8) *problem {
	each := max(s.picked/2, 1) // elements that an index picks
	for row := range mmaRows {
		list := to(row)
		for chunk := range s.k / s.chunk {
			lane, bit := s.place(row, chunk)
			metadata := w.r32[in.args[s.at].slot][lane]
			indices := [2]int{int(metadata >> bit & 3), int(metadata >> (bit + 2) & 3)}
			if wrong := s.wrong(indices); wrong != "" {
				return problemf(IllegalInstruction, "metadata %#08x of lane %d pick units %d and %d of k %d to %d of row %d (bits %d to %d), want %s",
					metadata, lane, indices[0], indices[1], chunk*s.chunk, (chunk+1)*s.chunk-1, row, bit, bit+chunkBits-1, wrong)
			}
			for i := range s.picked {
				list[chunk*s.picked+i] = uint8(chunk*s.chunk + indices[i/each]*s.chunk/chunkUnits + i%each)
			}
		}
	}
	return nil
}

// unread returns the lanes whose register is not read because they provide no metadata.
func (in *inst) unread(r slotRef) uint32 {
	s := in.sparse
	if s == nil || r.bank != bank32 || r.slot != in.args[s.at].slot {
		return 0
	}
	return ^(0x11111111 * (1<<s.lanes - 1) << s.first)
}

// wrong returns what a valid pair of indices would be, or "" if the pair is valid.
func (s *sparsity) wrong(indices [2]int) string {
	switch {
	case s.picked == 1 && (indices[0]%2 != 0 || indices[1] != indices[0]+1):
		return "0 and 1 for the first TF32 number, 2 and 3 for the second"
	case indices[0] == indices[1]:
		return "two different units"
	case s.ordered && indices[0] > indices[1]:
		return "the lower unit in the lower bits, as metadata are ordered"
	}
	return ""
}
