package kernel

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/ptx"
)

// skew sets the second math warpgroup one ring behind the first, once, at the
// CTA's first tile. From then on one warpgroup multiplies, as far ahead as the
// ring is deep, while the other is in its epilogue; side by side, both would
// leave the tensor cores idle at the same time.
type skew struct {
	k     *ptx.Kernel
	wg    ptx.U32
	first *ptx.Var[ptx.U32] // 1 until the first tile is done
	at    ptx.U32           // the k-tile after which the second may start
}

const (
	skewBarrier = 3
	skewThreads = 2 * pipeline.WarpgroupThreads
)

func (p *product) newSkew(wg ptx.U32) *skew {
	return &skew{k: p.k, wg: wg, first: ptx.NewVar(p.k, ptx.Uint(1)), at: ptx.Uint(min(p.point.Stages, p.kTiles) - 1)}
}

// follow holds the second warpgroup at its first tile.
func (s *skew) follow() {
	s.k.If(s.first.Get().Eq(s.wg), func() { s.k.BarSync(ptx.Uint(skewBarrier), ptx.Uint(skewThreads)) })
}

// lead lets the second start when the first has multiplied a ring's worth.
func (s *skew) lead(kt ptx.U32) {
	now := kt.Eq(s.at).And(s.first.Get().EqI(1)).And(s.wg.EqI(0))
	s.k.If(now, func() { s.k.BarArrive(ptx.Uint(skewBarrier), ptx.Uint(skewThreads)) })
}

// seeded ends the first tile.
func (s *skew) seeded() { s.first.Set(ptx.Uint(2)) }
