package decode

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// boxes stores the results of a warpgroup's unit by TMA. A box has up to boxTokens tokens. In memory
// the values of a token are contiguous, but a thread has several tokens of each neuron, so the values
// are transposed through shared memory. TMA drops the rows past the block's last token. A warpgroup
// has room for one box. The zero value stores nothing.
type boxes struct {
	*product
	barriers pipeline.NamedBarriers
	memory   ptx.Shared
	to       ptx.TensorMap
	// width is the number of values of a token in a box, 64 or 32.
	width int
}

const boxTokens = tile.RaggedRows

// boxMap returns the map that stores boxes of a matrix [rows, columns].
func boxMap(p driver.DevicePtr, width, columns, rows int) gpu.TensorMap {
	m := tile.RaggedMap(p, columns, rows)
	if width == tile.K/2 {
		m.Box[0], m.Swizzle = tile.K/2, gpu.Swizzle64
	}
	return m
}

// newBoxes reserves the memory of boxes.
func newBoxes(p *product, to ptx.TensorMap, width int) boxes {
	return boxes{
		product: p, to: to, width: width, barriers: p.cta.NamedBarriers("boxes", p.shape.units, pipeline.WarpgroupThreads),
		memory: p.cta.Shared("boxes", p.shape.units*boxBytes(width), 1024),
	}
}

// given reports whether the boxes store anything.
func (s boxes) given() bool { return s.width > 0 }

// boxBytes returns the size of a box.
func boxBytes(width int) int { return boxTokens * width * tile.ElementBytes }

// isFirst reports whether the thread starts the warpgroup's stores.
func (s boxes) isFirst() ptx.Pred {
	return s.k.ElectOne().And(s.k.ThreadInWarpgroup().LtI(32))
}

// store stores a block. value returns what is stored in place of the thread's sum j. With 32 values
// a token, store calls value for the sums of the thread's upper row only.
func (s boxes) store(b block, value func(j int) ptx.F32) {
	k, isFirst, warpgroup := s.k, s.isFirst(), s.k.Warpgroup()
	slot := s.memory.Plus(warpgroup.MulI(boxBytes(s.width)))
	for first := 0; first < s.tokens; first += boxTokens {
		k.If(b.rows.GtI(first), func() {
			k.If(isFirst, func() { k.BulkWait(0, ".read") }) // the previous box has left the memory
			s.barriers.Sync(warpgroup)
			s.write(slot, func(j int) ptx.F32 {
				if first/2+j >= s.tokens/2 {
					return ptx.Float(0) // TMA drops it
				}
				return value(first/2 + j)
			})
			k.FenceProxyAsync(".shared::cta")
			s.barriers.Sync(warpgroup)
			k.If(isFirst, func() {
				tokens := b.rows.SubI(first).MinI(boxTokens)
				k.TMAStore(s.to, slot, b.unit.MulI(s.width), ptx.Uint(boxTokens).Sub(tokens), b.row.AddI(first).Add(tokens))
				k.BulkCommit()
			})
		})
	}
}

// write writes a box to shared memory, transposed.
func (s boxes) write(slot ptx.Shared, value func(j int) ptx.F32) {
	k, thread := s.k, s.k.ThreadInWarpgroup()
	if s.width == tile.K {
		tile.NewTransposedStaging(k, s.element, thread).StoreEach(slot, value)
		return
	}
	// A warp has 8 values of each token, which are one chunk of 16 bytes. Matrix i of stmatrix has
	// 8 tokens: lane l gives the address of token l%8 of matrix l/8.
	const tokens = 32 // of one stmatrix
	to := slot.Plus(tile.SwizzledNarrow(ptx.LaneOf(thread), ptx.WarpOf(thread)))
	for first := 0; first < boxTokens; first += tokens {
		var words []ptx.U32
		for j := first / 2; j < (first+tokens)/2; j += 4 {
			words = append(words, s.element.Pack(k, value(j), value(j+1)))
		}
		k.StmatrixTrans(to.At(first*s.width*tile.ElementBytes), words...)
	}
}

// finish waits for the warpgroup's last stores.
func (s boxes) finish() {
	s.k.If(s.isFirst(), func() { s.k.BulkWait(0) })
}
