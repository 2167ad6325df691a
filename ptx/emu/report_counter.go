package emu

import (
	"math/bits"
	"slices"

	"sonicmoe/ptx/emu/layout"
)

// The counts of a report follow documented rules: shared memory has 32 banks of 4 bytes, lanes that
// access the same word share one access, and global memory moves in sectors of 32 bytes. Two rules
// are assumed, after measurements by others. First, shared memory serves 8-byte accesses for half a
// warp at a time and 16-byte accesses for a quarter, even if two parts would fit in one step.
// Second, it serves atomics on one word one after the other. For TMA and wgmma only bytes are
// counted, not banks.

// counter counts what one cluster does.
type counter struct {
	by            []Counts // counts of each instruction, indexed by the instruction's number
	read, written pages
}

// executed counts one execution of an instruction by a warp.
func (c *counter) executed(in *inst, mask uint32) {
	n := &c.by[in.number]
	n.Warps++
	n.Lanes += uint64(bits.OnesCount32(mask))
}

// direction says whether an access reads, writes, or does both.
type direction uint8

const (
	reads direction = iota
	writes
	readsAndWrites // atomics
)

const (
	banks     = 32
	wordBytes = 4
)

// shared counts an instruction by which each lane accesses n bytes of shared memory.
func (c *counter) shared(w *warp, in *inst, o *operand, mask, n uint32, d direction) {
	to := &c.by[in.number]
	var at [warpLanes]uint32
	own := uint32(0)
	for l := range lanesIn(mask) {
		if at[l] = w.shared32(o, l); int(at[l]>>sharedRankBit) == w.cta.rank {
			own |= 1 << l
		}
	}
	note := func(read, written *uint64, lanes uint32) {
		bytes := uint64(bits.OnesCount32(lanes)) * uint64(n)
		if d != writes {
			*read += bytes
		}
		if d != reads {
			*written += bytes
		}
	}
	note(&to.SharedRead, &to.SharedWritten, own)
	note(&to.ClusterRead, &to.ClusterWritten, mask&^own)
	is, least := wavefronts(&at, own, n, d == readsAndWrites)
	to.Wavefronts += is
	to.LeastWavefronts += least
}

// wavefronts returns the number of steps in which shared memory serves lanes that access n bytes
// each, and the number without conflicts. A step serves one 4-byte word of each bank.
func wavefronts(at *[warpLanes]uint32, lanes, n uint32, atomic bool) (is, least uint64) {
	together := uint32(warpLanes) // largest number of lanes that one step can serve
	if n > wordBytes {
		together = warpLanes * wordBytes / n
	}
	for from := uint32(0); from < warpLanes; from += together {
		part := lanes >> from & uint32(1<<together-1) << from
		if part == 0 {
			continue
		}
		var used [banks]uint64
		var words []uint32
		for l := range lanesIn(part) {
			for word := at[l] / wordBytes; word <= (at[l]+n-1)/wordBytes; word++ {
				if atomic || !slices.Contains(words, word) {
					words = append(words, word)
					used[word%banks]++
				}
			}
		}
		is += slices.Max(used[:])
		least++
	}
	return is, least
}

// global counts an instruction by which each lane accesses n bytes of global memory.
func (c *counter) global(w *warp, in *inst, o *operand, mask uint32, n uint64, d direction) {
	var at [warpLanes]uint64
	var bytes [warpLanes]uint32
	for l := range lanesIn(mask) {
		at[l], bytes[l] = w.address64(o, l), uint32(n)
	}
	c.lanes(in, &at, &bytes, d)
}

// lanes counts the accesses of a warp's instruction to global memory. Each lane's bytes lie in one
// sector.
func (c *counter) lanes(in *inst, at *[warpLanes]uint64, bytes *[warpLanes]uint32, d direction) {
	var list [warpLanes]uint64
	var asked [warpLanes]uint32 // bytes that lanes access in each sector
	to, sectors, distinct, all := &c.by[in.number], list[:0], 0, uint64(0)
	for l, n := range bytes {
		if n == 0 {
			continue
		}
		all += uint64(n)
		i := slices.Index(sectors, at[l]/sectorBytes)
		if i < 0 {
			i = len(sectors)
			sectors = append(sectors, at[l]/sectorBytes)
		}
		asked[i] |= uint32(1<<uint64(n)-1) << (at[l] % sectorBytes)
	}
	for i, s := range sectors {
		distinct += bits.OnesCount32(asked[i])
		c.touch(s, d)
	}
	c.noteGlobal(to, all, uint64(len(sectors)), uint64(distinct+sectorBytes-1)/sectorBytes, d)
}

func (c *counter) noteGlobal(to *Counts, bytes, sectors, least uint64, d direction) {
	to.Sectors += sectors
	to.LeastSectors += least
	if d != reads {
		to.GlobalWritten += bytes
		to.SectorsWritten += sectors
	}
	if d != writes {
		to.GlobalRead += bytes
	}
}

func (c *counter) touch(sector uint64, d direction) {
	if d != writes {
		c.read.add(sector)
	}
	if d != reads {
		c.written.add(sector)
	}
}

// row counts n contiguous bytes of global memory that TMA moves.
func (c *counter) row(to *Counts, at, n uint64, d direction) {
	if n == 0 {
		return
	}
	end := (at + n - 1) / sectorBytes
	for s := at / sectorBytes; s <= end; s++ {
		c.touch(s, d)
	}
	c.noteGlobal(to, n, end-at/sectorBytes+1, (n+sectorBytes-1)/sectorBytes, d)
}

// rows counts what TMA moves in global memory: a box of tensor map t, or size bytes if t is nil.
func (c *counter) rows(to *Counts, t *layout.TensorMap, coords []int32, at uint64, size uint32, d direction) {
	if t == nil {
		c.row(to, at, uint64(size), d)
		return
	}
	t.Rows(coords, 0, func(r *layout.BoxRow) bool {
		c.row(to, r.Global+uint64(r.Lo), uint64(r.Hi-r.Lo), d)
		return true
	})
}

// load counts a bulk copy into shared memory. A multicast reads global memory once; this is counted
// at its first CTA.
func (c *counter) load(b *bulkLoad) {
	to := &c.by[b.in.number]
	switch {
	case b.from != nil:
		to.SharedRead += uint64(b.size)
	case !b.again:
		c.rows(to, b.tensor, b.coords, b.src, b.size, reads)
	}
	if b.to == b.warp.cta {
		to.SharedWritten += uint64(b.size)
	} else {
		to.ClusterWritten += uint64(b.size)
	}
}

// store counts a bulk copy from shared memory.
func (c *counter) store(st *bulkStore) {
	to := &c.by[st.in.number]
	to.SharedRead += uint64(st.size)
	c.rows(to, st.tensor, st.coords, st.dst, st.size, writes)
}

// product counts the bytes of a wgmma's operands that one of its four warps reads from shared
// memory: the warp's rows of A and a quarter of B, as if the warps shared the reads of B.
func (c *counter) product(in *inst) {
	const rowBytes = 32 // bytes of a row of A or B in one step, for every element type
	rows := in.matrixRows(1) / 4 * in.slabs(1)
	if !in.fromRegisters() {
		rows += wgmmaRows / 4
	}
	c.by[in.number].SharedRead += uint64(rows) * rowBytes
}

// copied counts the accesses of a cp.async.
func (c *counter) copied(w *warp, in *inst, r *copyRecord) {
	c.shared(w, in, &in.args[0], r.lanes, r.size, writes)
	c.lanes(in, &r.src, &r.bytes, reads)
}
