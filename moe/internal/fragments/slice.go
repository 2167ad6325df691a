package fragments

import "sonicmoe/ptx"

// SliceRows is the number of rows of a slice of a unit. A warp multiplies a slice.
const SliceRows = 16

// Slice has the addresses at which a lane copies its warp's slice of a block to shared memory.
type Slice struct {
	Format
	k    *ptx.Kernel
	lane ptx.U32
}

// NewSlice returns the slice for a lane of a warp.
func NewSlice(k *ptx.Kernel, f Format, lane ptx.U32) Slice { return Slice{f, k, lane} }

// scaleBytes returns the size of a plane of the slice's scales.
func (s Slice) scaleBytes() int { return SliceRows / 2 * 4 * min(planeWords, s.scaleWords()) }

// codePlanes returns the number of times that a lane loads codes. scalePlanes returns it for scales.
func (s Slice) codePlanes() int  { return KTiles * s.codeBytes() / planeBytes }
func (s Slice) scalePlanes() int { return max(1, s.scaleWords()/planeWords) }

// Bytes returns the size of the slice of a block in shared memory: codes, then scales.
func (s Slice) Bytes() int { return s.codePlanes()*lanes*loadBytes + s.scalePlanes()*s.scaleBytes() }

const lanes = 32

// From returns the addresses of the lane's codes and scales in slice number `slice` of a block.
func (s Slice) From(block ptx.Global, slice ptx.U32) (codes, scales ptx.Global) {
	return block.Plus(slice.MulI(lanes).Add(s.lane).MulI(loadBytes).U64()), block.At(s.scalesAt()).Plus(slice.MulI(s.scaleBytes()).Add(s.chunk()).U64())
}

// chunk returns the offset of the scales that the lane copies. Several lanes copy the same scales.
func (s Slice) chunk() ptx.U32 { return s.lane.AndI(s.scaleBytes()/loadBytes - 1).MulI(loadBytes) }

// Copy copies the slice to shared memory. codes and scales are the addresses that From returns. bytes is
// 16, or 0 if nothing is to be copied.
func (s Slice) Copy(to ptx.Shared, codes, scales ptx.Global, bytes ptx.U32) {
	for i := range s.codePlanes() {
		s.k.CpAsyncCG(to.At(i*lanes*loadBytes).Plus(s.lane.MulI(loadBytes)), codes.At(i*planeBytes), loadBytes, bytes)
	}
	for i := range s.scalePlanes() {
		s.k.CpAsyncCG(to.At(s.codePlanes()*lanes*loadBytes+i*s.scaleBytes()).Plus(s.chunk()), scales.At(i*4*planeWords*rowPairs), loadBytes, bytes)
	}
}

// Load loads the lane's words of a slice from shared memory.
func (s Slice) Load(at ptx.Shared) *Block {
	b := &Block{Lane: Lane{Format: s.Format, k: s.k}, isLoaded: true}
	for i := range s.codePlanes() {
		b.codes = append(b.codes, ptx.LdSharedVec[ptx.U32](at.At(i*lanes*loadBytes).Plus(s.lane.MulI(loadBytes)), loadBytes/4)...)
	}
	each := min(planeWords, s.scaleWords())
	for i := range s.scalePlanes() {
		from := at.At(s.codePlanes()*lanes*loadBytes + i*s.scaleBytes()).Plus(s.lane.ShrI(2).MulI(4 * each))
		if each == 1 {
			b.factors = append(b.factors, ptx.LdShared[ptx.U32](from))
		} else {
			b.factors = append(b.factors, ptx.LdSharedVec[ptx.U32](from, each)...)
		}
	}
	return b
}
