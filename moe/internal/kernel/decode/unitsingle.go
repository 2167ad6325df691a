package decode

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/ptx"
)

// This file has the code that the up-projection and the down-projection of a single token share if
// the weights are packed. The weights are then units of package fragments. A slice is 16 rows of a
// unit. A warp multiplies slices by the token: it copies the codes to a ring of its own in shared memory,
// several blocks ahead, and multiplies by mma.sync. The units are laid out for operand A of wgmma, and a
// lane has the same elements of operand A in mma.sync.

const (
	sliceRows = fragments.SliceRows
	// slicesOfUnit is the number of slices of a unit.
	slicesOfUnit = fragments.Rows / sliceRows
	// blockColumns is the number of columns of a block. blockBytes is the size of as many elements of
	// the token.
	blockColumns = fragments.Columns
	blockBytes   = blockColumns * tile.ElementBytes
)

// HasSingleUnits reports whether a single token of the layer has kernels of its own for packed
// weights. It has them if each CTA of the down-projection has at most one item of [SingleUnitsDown]. With
// codes of 4 bits it also has them for two items, if each slice of a CTA has a warp. Otherwise the
// kernels with tiny CTAs are faster: experiments.md of the benchmarks has the figures. The activations
// of all experts of the token must fit in the shared memory of a CTA.
func HasSingleUnits(c spec.Config) bool {
	const most = 96 << 10
	if !choose.HasSingle(c) || !spec.IsPacked(c) || c.TopK*fragments.Blocks(c.Intermediate)*blockBytes > most {
		return false
	}
	items := ceil(ceil(c.Hidden, sliceRows), evenSMs)
	slices := max(items*c.TopK, ceil(upSlices(c), evenSMs)) // the most of a CTA
	return items == 1 || items == 2 && slices <= maxUnitWarps && spec.PackingOf(c).Code != spec.E4M3
}

// upSlices returns the number of slices of the up-projection.
func upSlices(c spec.Config) int { return c.TopK * fragments.W1(c).Units * slicesOfUnit }

// Unless the activations are large, an SM has room for a CTA of each kernel. It has no room for two
// CTAs of the up-projection. Otherwise some SMs would have two of them and others none, and the pass
// would wait for the SMs with two.
const (
	upReserved   = 118 << 10 // bytes of shared memory
	downReserved = 106 << 10
)

// unitSingle is the state of one of the two kernels while its code is emitted.
type unitSingle struct {
	*single
	m  fragments.Matrix
	at ptx.Global // the address of the units
	// warps is the number of warps of a CTA. reserved is the number of bytes of shared memory that the
	// CTA reserves.
	warps, reserved int
	// tokens has the token's data in the order of operand B. The up-projection has one row, the
	// token. The down-projection has a row for each of the token's K experts.
	tokens ptx.Shared
}

// A CTA has at least minUnitWarps and at most maxUnitWarps warps.
const minUnitWarps, maxUnitWarps = 8, 16

// unitWarps returns the number of warps of a CTA: one for each slice, within the limits. slices is the
// number of slices of all CTAs.
func unitWarps(slices int) int { return min(max(minUnitWarps, ceil(slices, evenSMs)), maxUnitWarps) }

// newUnitSingle reserves shared memory for the token's experts, and for rows of the token's data.
func newUnitSingle(k *ptx.Kernel, c spec.Config, m fragments.Matrix, at ptx.Global, warps, reserved, rows int) unitSingle {
	t := newSingleThread(k)
	p := &single{Config: c, singleThread: t, ids: t.cta.Shared("ids", 4*c.TopK, 4)}
	return unitSingle{single: p, m: m, at: at, warps: warps, reserved: reserved, tokens: t.cta.Shared("tokens", rows*m.Blocks()*blockBytes, 16)}
}

// stage copies rows of the token's data to shared memory, with all threads of the CTA. The number of
// elements of a row is a multiple of 8. stage fills rows with zeros up to whole blocks. Operand B of
// a k-tile has four parts, one for each lane of a group of 4. stage stores each part contiguously:
// four steps of 16 columns, with two words for each step. A thread loads up to four times before it
// stores.
func (p *unitSingle) stage(from ptx.Global, rows, elements int) {
	const chunk = tile.CopyBytes / tile.ElementBytes // elements of a copy
	k, ofRow := p.k, p.m.Blocks()*blockColumns/chunk
	const chunks = tile.K / chunk // copies of a k-tile
	const most = 4                // loads of a thread before its first store
	threads := 32 * p.warps
	for first := 0; first < rows*ofRow; first += most * threads {
		type copied struct {
			is    ptx.Pred
			to    ptx.Shared
			words []*ptx.Var[ptx.U32]
		}
		var list []copied
		for i := first; i < min(first+most*threads, rows*ofRow); i += threads {
			number := k.TidX().AddI(i)
			row := number.DivI(ofRow)
			at := number.Sub(row.MulI(ofRow))
			c := copied{is: number.LtI(rows * ofRow), words: ptx.NewVars(k, 4, ptx.Uint(0))}
			k.If(c.is.And(at.LtI(elements/chunk)), func() {
				ptx.SetAll(c.words, ptx.LdGlobalVec[ptx.U32](from.Index(row, elements*tile.ElementBytes).Index(at, tile.CopyBytes), 4))
			})
			c.to = p.tokens.Plus(row.MulI(ofRow * tile.CopyBytes).Add(at.DivI(chunks).MulI(tile.RowBytes)).Add(at.AndI(chunks - 1).ShlI(2)))
			list = append(list, c)
		}
		for _, c := range list {
			k.If(c.is, func() {
				for lane, w := range c.words {
					ptx.StShared(c.to.At(lane*tile.RowBytes/4), w.Get())
				}
			})
		}
	}
}

// slicesOf describes the slices of a CTA, which are numbered from 0 to count-1.
type slicesOf struct {
	count ptx.U32
	// place returns the slot of a slice's expert, the unit, and the number of the slice in the unit.
	place func(slice ptx.U32) (slot, unit, quarter ptx.U32)
	// row returns the row of unitSingle.tokens that a slice multiplies.
	row func(slice ptx.U32) ptx.U32
	// start returns the initial sums of the thread's upper and lower row. store stores the sums of
	// these rows.
	start func(slice ptx.U32) [2]ptx.F32
	store func(slice ptx.U32, sums [2]ptx.F32)
}

// unitSteps are what a CTA does between the steps of unitSingle.multiply.
type unitSteps struct {
	// choose comes before the first loads of weights. When it returns, the token's experts must be in
	// shared memory.
	choose func()
	// begin comes after the first loads of weights. When it returns, the token's data must be in shared
	// memory.
	begin func()
	// loaded comes when a warp has started its last loads of weights.
	loaded func()
}
