package emu

import "strings"

// In a sparse product, A keeps half the elements of each row. A row consists of chunks of 4 units.
// A unit is a 16-bit or 8-bit element, half a TF32 number, or two 4-bit elements. A keeps 2 units
// of each chunk. Each 4 bits of metadata say which: they hold two 2-bit indices, the first in the
// lower bits.

// sparsity describes which lanes of a warp provide which metadata of a sparse product.
type sparsity struct {
	at     int // index of the metadata operand; the selector operand follows it
	k      int // extent in k of a row before A drops elements
	chunk  int // number of neighbouring elements that share 4 bits of metadata
	picked int // number of elements of a chunk that A keeps
	first  int // in each group of four lanes, the first lane that provides metadata
	lanes  int // in each group of four lanes, the number of lanes that provide metadata
	// ofRows reports whether a lane provides metadata of one row. If false, it provides metadata of
	// two rows.
	ofRows  bool
	ordered bool // the instruction demands that the lower index of a pair comes first
}

const (
	chunkUnits  = 4
	chunkBits   = 4 // bits of metadata
	laneChunks  = 32 / chunkBits
	sparseShare = 2 // a row has twice the elements that A keeps
)

// newSparsity returns the layout of the metadata of an instruction, or nil if the instruction is
// dense. element is the element type of A.
func newSparsity(in *inst, element string) *sparsity {
	for at, a := range in.form.Args {
		if a.Name != "metadata" {
			continue
		}
		_, _, k := shapeOf(in.mod("shape"))
		bits := elementBits(element)
		chunk := chunkUnits * min(max(bits, 8), 16) / bits
		lanes := 4 / int(in.form.Args[at+1].Below) // in each group of four lanes
		return &sparsity{at: at, k: k, chunk: chunk, picked: chunk / sparseShare, first: int(in.args[at+1].imm) * lanes, lanes: lanes,
			ofRows: bits <= 8, ordered: strings.Contains(in.form.Op, "ordered_metadata")}
	}
	return nil
}

// place returns the lane that provides the metadata of a chunk of a row, and the first bit of this
// metadata in the lane's register. row is one of the warp's 16 rows.
//
// For elements of up to a byte, a lane provides 8 chunks of one row: even lanes for rows 0 to 7,
// odd lanes for rows 8 to 15. For wider elements, a lane provides 4 chunks of a row in the lower
// half of the register, and 4 chunks of row+8 in the upper half.
func (s *sparsity) place(row, chunk int) (lane, bit int) {
	lane = row%8*4 + s.first
	if s.ofRows {
		return lane + row/8 + chunk/laneChunks*2, chunk % laneChunks * chunkBits
	}
	const half = laneChunks / 2
	return lane + chunk/half, (row/8*half + chunk%half) * chunkBits
}

// picks decodes the metadata of the warp's 16 rows. For each row, it writes the k of each element
// that A keeps to the slice that function to returns.
func (s *sparsity) picks(w *warp, in *inst, to func(row int) []uint8) *problem {
	each := max(s.picked/2, 1) // number of elements that one index picks
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

// unread returns the lanes whose register r the instruction does not read, because these lanes
// provide no metadata.
func (in *inst) unread(r slotRef) uint32 {
	s := in.sparse
	if s == nil || r.bank != bank32 || r.slot != in.args[s.at].slot {
		return 0
	}
	return ^(0x11111111 * (1<<s.lanes - 1) << s.first)
}

// wrong returns "" for a valid pair of indices. For an invalid one it describes what would be
// valid.
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
