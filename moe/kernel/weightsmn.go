package kernel

import (
	"fmt"

	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// loadWeightsMN starts the loads of a stage's MN-major weights, whose columns
// go 64 to a block: one box, or in a cluster each half from the CTA of its
// rank. at gives the coordinates of the box that starts at a block.
func (p *product) loadWeightsMN(s pipeline.Stage, t schedule.Tile, w ptx.TensorMap, at func(block ptx.U32) []ptx.U32) {
	first := t.Column.MulI(p.point.TileN / tile.Block)
	if p.point.ctas() == 1 {
		p.k.TMALoad(s.Data.At(tileABytes), w, s.Full, at(first)...)
		return
	}
	p.loadHalves(s, t, w, func(part ptx.U32) []ptx.U32 {
		return at(part.MulI(p.point.boxBlocks()).Add(first))
	})
}

// boxBlocks is the blocks of 64 columns in a box of MN-major weights.
func (p Point) boxBlocks() int { return p.TileN / tile.Block / p.ctas() }

// errPointMN is for a point whose boxes would not be whole blocks.
func errPointMN(name string, p Point) error {
	return fmt.Errorf("%s: tile point %v: TileN must be a multiple of %d for each CTA of the cluster", name, p, tile.Block)
}

// clusteredMN adds to each point whose columns make two boxes of whole blocks
// the one of clusters of two CTAs.
func clusteredMN(points []Point) []Point {
	var all []Point
	for _, p := range clustered(points) {
		if p.TileN%(tile.Block*p.ctas()) == 0 {
			all = append(all, p)
		}
	}
	return all
}
