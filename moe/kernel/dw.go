package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// Weight is one of the two weights of an expert.
type Weight uint8

const (
	// W1 is [2n, d], gate and up.
	W1 Weight = iota
	// W2 is [d, n].
	W2
)

// DW is the gradient of an expert's weight, a product over the expert's
// packed rows p:
//
//	dW2[e] [d, n]  = Σ_p dO[gather[p]]ᵀ · A'[p]
//	dW1[e] [2n, d] = Σ_p dH[p]ᵀ · X[gather[p]]
//
// Both are multiplied as [d, N]: the gathered rows are A, the packed rows B,
// both contiguous across the sum; dW1 is stored transposed. Rows past a
// split's end are zeros in both, never the next expert's, whose infinities
// would make NaN of the zeros.
type DW struct {
	Hidden, Intermediate int
	Of                   Weight
	// Layout is W1's; it means nothing to W2.
	Layout spec.GateUp
	Store  Gradient
	// SplitRows is the rows of a split, as in [DWPlan].
	SplitRows int
	Point     Point
}

// width is N: the width of the packed rows.
func (d DW) width() int {
	if d.Of == W1 {
		return 2 * d.Intermediate
	}
	return d.Intermediate
}

// mapped: the gradient is stored through a tensor map.
func (d DW) mapped() bool { return d.Store == Gradient{} }

// PartialBytes is the size of a slot for a partial sum. Each slot also has
// 8 bytes of state, which are 0 at the start.
func (d DW) PartialBytes() int { return BlockRows * d.Point.TileN * 4 }

// dw is the emission of a DW.
type dw struct {
	DW
	*product
	queue *dwQueue
	// x is gathered; rows are the packed rows, rowsMap their map.
	x, gather, rows ptx.Global
	rowsMap         ptx.TensorMap
	out             ptx.Global
	outMap          ptx.TensorMap
	partials, state ptx.Global
	slots           ptx.U32
}

// Build emits the kernel.
func (d DW) Build() (Kernel, error) {
	name := "moe_dw1"
	if d.Of == W2 {
		name = "moe_dw2"
	}
	name += d.Store.suffix()
	k := ptx.NewKernel(name)
	k.SetLaunchBounds(productThreads, 1)
	e := &dw{DW: d, product: &product{k: k, point: d.Point, gathered: true}}
	e.x, e.gather = k.ParamPtr("x"), k.ParamPtr("gather")
	e.rows, e.rowsMap = k.ParamPtr("rows"), k.ParamTensorMap("rowsmap")
	if d.mapped() {
		e.outMap = k.ParamTensorMap("dw")
	} else {
		e.out = k.ParamPtr("dw")
	}
	splits, counts, tickets := k.ParamPtr("splits"), k.ParamPtr("counts"), k.ParamPtr("tickets")
	e.partials, e.state, e.slots = k.ParamPtr("partials"), k.ParamPtr("state"), k.ParamU32("slots")
	if d.Store.Accumulate {
		counts = counts.At(4) // experts without rows add nothing
	}
	e.tid = k.Special("%tid.x")
	e.mem = pipeline.NewShared(k)
	set := pipeline.NewSetup(k)
	e.staging = e.mem.Take(2*storeSlots*tile.StagingBytes, 1024)
	const mathWarps, loadWarps, oneForTheBytes = 2 * 4, 4, 1
	e.ring = pipeline.NewRing(k, set, e.mem, d.Point.Stages, d.Point.stageBytes(), pipeline.WarpgroupThreads+oneForTheBytes, mathWarps)
	e.queue = &dwQueue{
		k: k, ring: pipeline.NewRing(k, set, e.mem, dwQueueDepth, dwItemBytes, 1, mathWarps+loadWarps),
		splits: splits, count: counts, tickets: tickets, splitRows: splitRows(d.SplitRows),
		tilesM: (d.Hidden + BlockRows - 1) / BlockRows, tilesN: (d.width() + d.Point.TileN - 1) / d.Point.TileN, widthN: d.Point.TileN,
	}
	set.Done(e.tid)
	k.GridDepWait()
	k.GridDepLaunch()
	pipeline.Run(k, e.tid.ShrI(7),
		pipeline.Role{Name: "math", First: 0, Count: 2, Body: e.math},
		pipeline.Role{Name: "load", First: 2, Count: 1, Body: e.load},
	)
	return build(k, name, productThreads, d.Point.sharedBytes())
}

// kTiles is how many 64-row steps an item takes: one, of zeros, without rows.
func kTiles(t dwItem) ptx.U32 {
	return t.rows.AddI(tile.K - 1).DivI(tile.K).Max(ptx.Uint(1))
}

// RowsMap is the load map of the packed rows: A' [R, n] or dH [R, 2n], in
// boxes of 64 rows x TileN columns, 64 columns after 64 columns.
func (d DW) RowsMap(p driver.DevicePtr, rows int) driver.TensorMap {
	return linesMap(p, d.width(), rows, d.Point.TileN)
}

// OutMap is the store map of a bf16 gradient that is overwritten: dW2
// [E, d, n] as n, d, 1, expert, or dW1 [E, 2n, d] as d, neuron, gate or up,
// expert, in boxes of 64 x 64.
func (d DW) OutMap(p driver.DevicePtr, experts int) driver.TensorMap {
	width, lines, parts := uint64(d.Intermediate), uint64(d.Hidden), uint64(1)
	line, part := width*bf16, width*bf16
	if d.Of == W1 {
		width, lines, parts = lines, width, 2
		line, part = width*bf16, lines*width*bf16
		if d.Layout == spec.Interleaved {
			line, part = 2*width*bf16, width*bf16
		}
	}
	return driver.TensorMap{
		Elem: driver.BF16, Rank: 4, Address: p,
		Dims:    [5]uint64{width, lines, parts, uint64(experts)},
		Strides: [4]uint64{line, part, width * lines * parts * bf16},
		Box:     [5]uint32{tile.Block, tile.Block, 1, 1},
		Swizzle: driver.Swizzle128,
	}
}
