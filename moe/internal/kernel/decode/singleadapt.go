package decode

import (
	"math"

	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// This file has what SingleDown does for the token's adapter: it adds u·B2ᵀ to each expert's rounded
// sums, and rounds again. The kernel before SingleDown computes u.

// singleAdapter has the parameters and the state of the product with LoraB2.
type singleAdapter struct {
	ids, scales, b2, u ptx.Global
	// rows has u of each slot.
	rows ptx.Shared
	// has reports whether the token has an adapter. place is the adapter's place in the table, or 0.
	has   ptx.Pred
	place ptx.U32
	// factors has the thread's elements of LoraB2: for each pair of strips, for its upper and its lower
	// strip, and for each step of mma.sync, two words.
	factors [][2][][]ptx.U32
}

// singleAdapter declares the parameters of the adapter. It returns nil if the layer has no table of
// adapters.
func (d SingleDown) singleAdapter(k *jit.Builder[SingleDownArgs], t singleThread) *singleAdapter {
	if !spec.HasAdapters(d.Config) {
		return nil
	}
	return &singleAdapter{
		ids: k.Ptr(&k.Args.AdapterIDs), scales: k.Ptr(&k.Args.Scales), b2: k.Ptr(&k.Args.LoraB2), u: k.Ptr(&k.Args.U),
		rows: t.cta.Shared("u", d.TopK*weights.SingleU(d.Config).Elements()*tile.ElementBytes, 16),
	}
}

// find finds the token's adapter, before the up-projection has ended.
func (s singleSum) find() {
	if a := s.adapter; a != nil {
		id := ptx.LdGlobal[ptx.U32](a.ids)
		a.has = weights.HasAdapter(s.Config, a.scales, id)
		a.place = ptx.Select(a.has, id, ptx.Uint(0))
	}
}

// loadU loads u of all slots into shared memory, in one warp.
func (s singleSum) loadU() {
	if a := s.adapter; a != nil {
		bytes := s.TopK * weights.SingleU(s.Config).Elements() * tile.ElementBytes
		s.k.For(s.lane.ShlI(4), ptx.Uint(bytes), ptx.Uint(32*16), func(at ptx.U32) {
			ptx.StShared(a.rows.Plus(at), ptx.LdGlobalVec[ptx.U32](a.u.Plus(at.U64()), 4)...)
		})
	}
}

// loadFactors loads the thread's elements of LoraB2 for a pass.
func (s singleSum) loadFactors(first, n ptx.U32) {
	a := s.adapter
	if a == nil {
		return
	}
	a.factors = make([][2][][]ptx.U32, s.tiles())
	rowBytes := s.LoRARank * tile.ElementBytes
	quad := s.lane.AndI(3)
	s.eachRow(first, n, func(pair, half int, _ ptx.Pred, slot, row ptx.U32) {
		from := a.b2.Index(a.place.MulI(s.NumExperts).Add(s.expert(slot)), s.Hidden*rowBytes).Index(first.MulI(stripRows).Add(row), rowBytes)
		for step := range weights.SingleU(s.Config).Elements() / tile.KStep {
			lane := quad
			if left := s.LoRARank - step*tile.KStep; left < tile.KStep { // u is 0 past the rank, so any finite values will do there
				lane = lane.MinI(left/4 - 1)
			}
			a.factors[pair][half] = append(a.factors[pair][half], ptx.LdGlobalVec[ptx.U32](from.Plus(lane.ShlI(3).U64()).At(step*tile.KStep*tile.ElementBytes), 2))
		}
	})
}

// adapted returns the sums with the adapter's products added, if the layer has a table.
func (s singleSum) adapted(acc [][]ptx.F32) [][]ptx.F32 {
	if s.adapter == nil {
		return acc
	}
	s.meet.Sync(ptx.Uint(0)) // one warp has loaded u
	sums := make([][]ptx.F32, len(acc))
	for i := range acc {
		sums[i] = s.adaptedPair(s.adapter, i, acc[i])
	}
	return sums
}

// adaptedPair returns the sums of a pair of strips with the adapter's products added. The sums are
// rounded before the addition. A token without an adapter keeps the bits of the rounded sums.
func (s singleSum) adaptedPair(a *singleAdapter, pair int, acc []ptx.F32) (sums []ptx.F32) {
	of, f := element.Of(s.Config), a.factors[pair]
	rowBytes := weights.SingleU(s.Config).Elements() * tile.ElementBytes
	for first := range len(acc) / 4 {
		slot := s.lane.ShrI(2).AddI(8 * first).MinI(s.TopK - 1)
		u := a.rows.Plus(slot.MulI(rowBytes)).Plus(s.lane.AndI(3).ShlI(3))
		product := s.k.Accumulators(4)
		for _, v := range product {
			ptx.VarOf(v).Set(ptx.Float(0))
		}
		for step := range f[0] {
			upper, lower := f[0][step], f[1][step]
			of.Mma(s.k, product, []ptx.U32{upper[0], lower[0], upper[1], lower[1]}, ptx.LdSharedVec[ptx.U32](u.At(step*tile.KStep*tile.ElementBytes), 2))
		}
		for i, v := range product {
			add := ptx.Select(a.has, v, ptx.Float(math.Copysign(0, -1)))
			sums = append(sums, of.Wide(of.Round(acc[4*first+i])).Add(add))
		}
	}
	return sums
}
