package emu

import "strings"

// Sparse products have half the elements of A's rows. Each 4 bits of metadata are
// two indices of 2 bits, the lower bits first, which pick 2 of the 4 units of a chunk
// of a row. A unit is an element of 16 or 8 bits, half a TF32 number, or two elements
// of 4 bits.

// sparsity is how metadata lies in the lanes of a warp.
type sparsity struct {
	at     int // of the metadata among the operands, before the selector
	k      int // of a whole row
	chunk  int // elements that a chunk has
	picked int // and those that are there of it
	first  int // lane of each four that gives metadata
	lanes  int // so many do
	// ofRows: a lane gives metadata of one row, else of two.
	ofRows  bool
	ordered bool // the lower index stands first
}

const (
	chunkUnits  = 4
	chunkBits   = 4 // of metadata
	laneChunks  = 32 / chunkBits
	sparseShare = 2 // of a row, the elements that are there: one of so many
)

// newSparsity is that of an instruction with such elements in A, or nil if it is dense.
func newSparsity(in *inst, element string) *sparsity {
	for at, a := range in.form.Args {
		if a.Name != "metadata" {
			continue
		}
		_, _, k := shapeOf(in.mod("shape"))
		bits := elementBits(element)
		chunk := chunkUnits * min(max(bits, 8), 16) / bits
		lanes := 4 / int(in.form.Args[at+1].Below) // that give metadata, of each four
		return &sparsity{at: at, k: k, chunk: chunk, picked: chunk / sparseShare, first: int(in.args[at+1].imm) * lanes, lanes: lanes,
			ofRows: bits <= 8, ordered: strings.Contains(in.form.Op, "ordered_metadata")}
	}
	return nil
}

// place is the lane that gives the metadata of a chunk of one of a warp's 16 rows, and
// the bit where they begin. Of elements of up to a byte a lane gives 8 chunks of one
// row, the odd lanes those of rows 8 and up. Of wider ones it gives 4 chunks of a row
// and, in the upper half, of the row 8 below.
func (s *sparsity) place(row, chunk int) (lane, bit int) {
	lane = row%8*4 + s.first
	if s.ofRows {
		return lane + row/8 + chunk/laneChunks*2, chunk % laneChunks * chunkBits
	}
	const half = laneChunks / 2
	return lane + chunk/half, (row/8*half + chunk%half) * chunkBits
}

// picks gives the k of the elements that are there of each of a warp's 16 rows.
func (s *sparsity) picks(w *warp, in *inst, to func(row int) []uint8) *problem {
	each := max(s.picked/2, 1) // elements that an index picks
	for row := range mmaRows {
		list := to(row)
		for chunk := range s.k / s.chunk {
			lane, bit := s.place(row, chunk)
			metadata := w.r32[in.args[s.at].slot][lane]
			indices := [2]int{int(metadata >> bit & 3), int(metadata >> (bit + 2) & 3)}
			if wrong := s.wrong(indices); wrong != "" {
				return problemf(IllegalInstruction, "metadata %#08x of lane %d pick units %d and %d of k %d to %d of row %d (bits %d to %d): %s",
					metadata, lane, indices[0], indices[1], chunk*s.chunk, (chunk+1)*s.chunk-1, row, bit, bit+chunkBits-1, wrong)
			}
			for i := range s.picked {
				list[chunk*s.picked+i] = uint8(chunk*s.chunk + indices[i/each]*s.chunk/chunkUnits + i%each)
			}
		}
	}
	return nil
}

// unread are the lanes whose register is not read: those that give no metadata.
func (in *inst) unread(r slotRef) uint32 {
	s := in.sparse
	if s == nil || r.bank != bank32 || r.slot != in.args[s.at].slot {
		return 0
	}
	return ^(0x11111111 * (1<<s.lanes - 1) << s.first)
}

// wrong says what is wrong with two indices.
func (s *sparsity) wrong(indices [2]int) string {
	switch {
	case s.picked == 1 && (indices[0]%2 != 0 || indices[1] != indices[0]+1):
		return "must be 0 and 1 for the first, 2 and 3 for the second TF32 number"
	case indices[0] == indices[1]:
		return "must differ"
	case s.ordered && indices[0] > indices[1]:
		return "ordered metadata have the lower one in the lower bits"
	}
	return ""
}
