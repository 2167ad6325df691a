package decode

import (
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/ptx"
)

// unitRing is the ring of blocks of a warp in shared memory. Registers would not do in its place, because
// the assembler waits for all loads to registers of a loop at once.
type unitRing struct {
	*unitSingle
	of    slicesOf
	slice fragments.Slice
	// blocks is the number of blocks that the warp loads ahead. The ring has room for one more.
	blocks int
	// at is the address of the ring. full and free are offsets in the ring: of the next block to
	// multiply, and of the block before it.
	at         ptx.Shared
	full, free *ptx.Var[ptx.U32]
	// from has the addresses of the lane's codes and scales in the next block to copy. bytes is 16 if
	// there is such a block, else 0.
	from  []*ptx.Var[ptx.U64]
	bytes *ptx.Var[ptx.U32]
}

// newRing reserves the rings of all warps, in the shared memory that is left, and reserves the rest of
// it. A warp loads at most a number of blocks ahead.
func (p *unitSingle) newRing(of slicesOf, most int) unitRing {
	k, slice := p.k, fragments.NewSlice(p.k, p.m.Format, p.lane)
	blocks := max(1, min(p.m.Blocks(), most, (p.reserved-k.SharedBytes())/(p.warps*slice.Bytes())-1))
	bytes := (blocks + 1) * slice.Bytes()
	at := p.cta.Shared("units", p.warps*bytes, 16)
	p.cta.Shared("rest", max(0, p.reserved-k.SharedBytes()), 1)
	return unitRing{
		unitSingle: p, of: of, slice: slice, blocks: blocks,
		at: at.Plus(p.warp.MulI(bytes)), full: ptx.NewVar(k, ptx.Uint(0)), free: ptx.NewVar(k, ptx.Uint(blocks*slice.Bytes())),
		from: ptx.NewVars(k, 2, ptx.Long(0)), bytes: ptx.NewVar(k, ptx.Uint(0)),
	}
}

// slicePlace is where a slice lies in the units of its expert: the addresses of the lane's codes and scales
// would be these if the expert were number 0. bytes is 16, or 0 if there is no such slice.
type slicePlace struct {
	slot, bytes   ptx.U32
	codes, scales ptx.Global
}

// find returns the place of a slice. The token's experts need not be known.
func (r unitRing) find(slice ptx.U32) slicePlace {
	is := slice.Lt(r.of.count)
	slot, unit, quarter := r.of.place(slice)
	codes, scales := r.slice.From(r.unitSingle.at.Index(unit, r.m.UnitBytes()), quarter)
	return slicePlace{ptx.Select(is, slot, ptx.Uint(0)), ptx.Select(is, ptx.Uint(tile.CopyBytes), ptx.Uint(0)), codes, scales}
}

// begin sets the addresses for the first block of a slice.
func (r unitRing) begin(s slicePlace) {
	expert, bytes := r.expert(s.slot), r.m.Units*r.m.UnitBytes()
	r.from[0].Set(s.codes.Index(expert, bytes).Addr())
	r.from[1].Set(s.scales.Index(expert, bytes).Addr())
	r.bytes.Set(s.bytes)
}

// copy starts to copy the next block, if there is one.
func (r unitRing) copy(to ptx.Shared) {
	r.slice.Copy(to, ptx.GlobalAt(r.from[0].Get()), ptx.GlobalAt(r.from[1].Get()), r.bytes.Get())
	r.k.CpAsyncCommit()
	for _, at := range r.from {
		at.Set(at.Get().AddI(r.m.BlockBytes()))
	}
}

// next returns the next block to multiply, and starts to copy another block over the block before it.
func (r unitRing) next() *fragments.Block {
	r.k.CpAsyncWait(r.blocks - 1)
	r.k.BarWarpSync(ptx.Uint(ptx.FullMask)) // the warp has copied this block, and has loaded the block before it
	at := r.full.Copy()
	b := r.slice.Load(r.at.Plus(at))
	r.copy(r.at.Plus(r.free.Get()))
	r.free.Set(at)
	r.full.Set(ptx.Select(at.EqI(r.blocks*r.slice.Bytes()), ptx.Uint(0), at.AddI(r.slice.Bytes())))
	return b
}

// multiply multiplies each of the CTA's slices by the token. A warp loads at most a number of blocks
// ahead.
func (p *unitSingle) multiply(of slicesOf, most int, steps unitSteps) {
	k, r := p.k, p.newRing(of, most)
	slice := ptx.NewVar(k, p.warp)
	place := r.find(slice.Get())
	steps.choose()
	r.begin(place)
	for i := range r.blocks {
		r.copy(r.at.At(i * r.slice.Bytes()))
	}
	steps.begin()
	acc, token := k.Accumulators(tile.WarpSums), ptx.NewVar(k, ptx.Uint(0))
	multiply := func(blocks int) {
		for range blocks {
			p.multiplyBlock(acc, r.next(), ptx.SharedAt(token.Get()))
			token.Set(token.Get().AddI(blockBytes))
		}
	}
	const atOnce = 4 // blocks without a branch between them
	each := func(blocks int) {
		if blocks >= atOnce {
			k.Range(ptx.Uint(blocks/atOnce), func(ptx.U32) { multiply(atOnce) })
		}
		multiply(blocks % atOnce)
	}
	k.Loop(func() {
		now := slice.Copy()
		k.BreakIf(now.Ge(of.count))
		for i, from := range of.start(now) {
			ptx.VarOf(acc[2*i]).Set(from)
			ptx.VarOf(acc[2*i+1]).Set(from)
		}
		token.Set(p.tokens.Plus(of.row(now).MulI(p.m.Blocks() * blockBytes).Add(p.lane.AndI(3).MulI(tile.RowBytes / 4))).Addr())
		slice.Set(now.AddI(p.warps))
		each(p.m.Blocks() - r.blocks)
		r.begin(r.find(slice.Get())) // the next slice
		k.If(slice.Get().Ge(of.count), steps.loaded)
		each(r.blocks)
		of.store(now, [2]ptx.F32{acc[0], acc[2]})
	})
	k.CpAsyncWait(0)
}

// multiplyBlock multiplies a block. token is the address of the token's data.
func (p *unitSingle) multiplyBlock(acc []ptx.F32, weights *fragments.Block, token ptx.Shared) {
	for kt := range fragments.KTiles {
		var b []ptx.U32
		for at := 0; at < tile.RowBytes/4; at += tile.CopyBytes {
			b = append(b, ptx.LdSharedVec[ptx.U32](token.At(kt*tile.RowBytes+at), 4)...)
		}
		for step, a := range weights.KTile(kt) {
			element.Of(p.Config).Mma(p.k, acc, a, b[2*step:][:2])
		}
	}
}
