package kernel

import (
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// DH is the backward pass through the down-projection and the activation:
// dA' = dO[rows]·W2, the rows of dO gathered as they are loaded, and in its
// epilogue, from the stored H and each row's score s,
//
//	A = silu(gate)·up, A' = s·A, dA = s·dA'
//	dH = dA·up·silu'(gate) and dA·silu(gate)
//	dspart = Σ dA'·A over each 64 neurons, in FP32: the score's gradient
//
// H comes by TMA, the first of it under the main loop.
type DH struct {
	Hidden, Intermediate int
	Point                Point
}

// Build emits the kernel.
func (d DH) Build() (Kernel, error) {
	const name = "moe_dh"
	k := ptx.NewKernel(name)
	if d.Point.boxBlocks()*tile.Block*d.Point.ctas() != d.Point.TileN {
		return Kernel{}, errPointMN(name, d.Point)
	}
	if parts := d.Point.TileN / dhPart; parts%(2*dhSlots) != 0 {
		return Kernel{}, fmt.Errorf("%s: tile point %v: TileN must be a multiple of %d, for its slots' parity", name, d.Point, 2*dhSlots*dhPart)
	}
	if d.Hidden < 2*tile.K {
		return Kernel{}, fmt.Errorf("%s: hidden size %d, must be at least %d: H is loaded behind the second k-tile", name, d.Hidden, 2*tile.K)
	}
	columns := (d.Intermediate + d.Point.TileN - 1) / d.Point.TileN
	do, gather, w := k.ParamPtr("do"), k.ParamPtr("gather"), k.ParamTensorMap("w2")
	e := dhEpilogue{
		k: k, groups: d.Point.TileN / dhGroup, neurons: d.Intermediate,
		h: k.ParamTensorMap("h"), dh: k.ParamPtr("dh"), a: k.ParamPtr("a"),
		scores: k.ParamPtr("scores"), pairs: k.ParamPtr("pairs"), partial: k.ParamPtr("dspart"),
	}
	p := layProduct(k, d.Point, d.Hidden/tile.K, columns, gatherArrivals, gatherReaders, 2*dhStaging, e.barriers)
	p.gathered, p.weightsMN = true, true
	p.before, p.during, p.ending = e.before, e.during, e.ending
	e.memory = p.staging
	g := gatherer{product: p, x: do, gather: gather, rowBytes: d.Hidden * bf16, loadB: func(s pipeline.Stage, t schedule.Tile, kt ptx.U32) {
		p.loadWeightsMN(s, t, w, func(block ptx.U32) []ptx.U32 {
			return []ptx.U32{ptx.Uint(0), kt.MulI(tile.K), block, t.Expert}
		})
	}}
	p.run(g.load, e.store)
	return build(k, name, productThreads, dhSharedBytes(d.Point))
}

// dhSharedBytes is the shared memory of a DH at a point.
func dhSharedBytes(p Point) int { return p.Stages*p.stageBytes() + 2*dhStaging + barrierBytes }

// W2Map is the load map of W2 [E, d, n] for boxes of 64 rows by a tile's
// neurons: dimensions neuron in 64, row, 64 neurons, expert.
func (d DH) W2Map(p driver.DevicePtr, experts int) driver.TensorMap {
	row := uint64(d.Intermediate) * bf16
	return driver.TensorMap{
		Elem: driver.BF16, Rank: 4, Address: p,
		Dims:    [5]uint64{tile.Block, uint64(d.Hidden), uint64(d.Intermediate / tile.Block), uint64(experts)},
		Strides: [4]uint64{row, tile.Block * bf16, uint64(d.Hidden) * row},
		Box:     [5]uint32{tile.Block, tile.K, uint32(d.Point.boxBlocks()), 1},
		Swizzle: driver.Swizzle128, Promote: driver.Promote128,
	}
}

// HMap is the load map of H [R, 2n] for boxes of 16 rows of 32 neurons' gate
// and up: dimensions neuron, row, gate or up.
func (d DH) HMap(p driver.DevicePtr, rows int) driver.TensorMap {
	n := uint64(d.Intermediate)
	return driver.TensorMap{
		Elem: driver.BF16, Rank: 3, Address: p,
		Dims:    [5]uint64{n, uint64(max(rows, 1)), 2},
		Strides: [4]uint64{2 * n * bf16, n * bf16},
		Box:     [5]uint32{dhPart, dhRows, 2},
		Swizzle: driver.Swizzle64, Promote: driver.Promote128,
	}
}
