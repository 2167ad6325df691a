package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// DX is the gradient of each packed row of X: dX~ = dH·W1, gate then up along
// the sum. With Router the router's own gradient rides along: dlrow·W_r, a
// rank-1 term, is added to each row's FP32 sums before they are rounded.
type DX struct {
	Hidden, Intermediate int
	Router               bool
	Point                Point
}

// Build emits the kernel.
func (x DX) Build() (Kernel, error) {
	name := "moe_dx"
	if !x.Router {
		name = "moe_dx_given"
	}
	k := ptx.NewKernel(name)
	if x.Point.boxBlocks()*tile.Block*x.Point.ctas() != x.Point.TileN {
		return Kernel{}, errPointMN(name, x.Point)
	}
	columns := (x.Hidden + x.Point.TileN - 1) / x.Point.TileN
	dh, w, dx := k.ParamTensorMap("dh"), k.ParamTensorMap("w1"), k.ParamTensorMap("dx")
	var router routerTerm
	if x.Router {
		router = routerTerm{k: k, dlrow: k.ParamPtr("dlrow"), wr: k.ParamPtr("wr"), width: x.Hidden}
	}
	p := newProduct(k, x.Point, 2*x.Intermediate/tile.K, columns, 1, 1)
	p.weightsMN = true
	if x.Router {
		router.p = p
		p.before = router.begin
		p.ending = router.ending
	}
	fill := func(at *pipeline.Cursor, t schedule.Tile) { x.load(p, at, t, dh, w) }
	p.run(func() { p.loadAlone(fill) }, func(s *storer, t schedule.Tile, acc []ptx.F32) {
		column := t.Column.MulI(x.Point.TileN)
		s.put(x.Point.TileN/64, func(i int) subTile {
			sub := subTile{value: registers(acc[32*i : 32*i+32]), to: dx, lead: []ptx.U32{column.AddI(64 * i)}}
			if x.Router {
				router.add(&sub, i)
			}
			return sub
		})
	})
	return build(k, name, productThreads, x.Point.sharedBytes())
}

// load starts the loads of a tile, gate's part of the sum first.
func (x DX) load(p *product, at *pipeline.Cursor, t schedule.Tile, dh, w ptx.TensorMap) {
	k := p.k
	for part := range 2 {
		k.For(ptx.Uint(0), ptx.Uint(x.Intermediate), ptx.Uint(tile.K), func(neuron ptx.U32) {
			s := at.Acquire()
			k.MbarrierArriveExpectTx(s.Full, ptx.Uint(x.Point.stageBytes()))
			k.TMALoad(s.Data, dh, s.Full, neuron.AddI(part*x.Intermediate), t.Row)
			p.loadWeightsMN(s, t, w, func(block ptx.U32) []ptx.U32 {
				return []ptx.U32{ptx.Uint(0), neuron, block, ptx.Uint(part), t.Expert}
			})
			at.Advance()
		})
	}
}

// routerTerm adds dlrow[row]·W_r[expert] to a warpgroup's sums. What a thread
// needs of the first 64 columns is loaded under the last products, what it
// needs of the others while those before are stored.
type routerTerm struct {
	k         *ptx.Kernel
	dlrow, wr ptx.Global
	width     int // of a row of W_r
	// The present tile.
	p       *product
	s       *storer
	t       schedule.Tile
	scale   [2]ptx.F32
	weights [8]ptx.BF16x2 // of the next 64 columns
}

func (r *routerTerm) begin(s *storer, t schedule.Tile) { r.s, r.t = s, t }

// ending loads the rows' factors and the first weights.
func (r *routerTerm) ending() {
	f := r.fragment()
	for h := range r.scale {
		row := r.s.row.Add(f.Row.AddI(8 * h).Min(r.s.rows.SubI(1))) // rows past the end are dropped
		r.scale[h] = ptx.LdGlobal[ptx.F32](r.dlrow.Index(row, 4))
	}
	r.fetch(0)
}

func (r *routerTerm) fragment() tile.Fragment {
	return tile.NewFragment(r.k.Special("%tid.x").AndI(pipeline.WarpgroupThreads - 1))
}

// fetch loads W_r in the thread's columns of 64-column group i. Groups past
// the last column repeat it: they are dropped.
func (r *routerTerm) fetch(i int) {
	column := r.t.Column.MulI(r.p.point.TileN).AddI(64 * i).Min(ptx.Uint(r.width - 64)).Add(r.fragment().Column)
	group := r.wr.Index(r.t.Expert, r.width*bf16).Index(column, bf16)
	for j := range r.weights {
		r.weights[j] = ptx.LdGlobal[ptx.U32](group.At(8*j*bf16), ".nc").AsBF16x2()
	}
}

// add adds the term to the values of 64-column group i.
func (r *routerTerm) add(sub *subTile, i int) {
	sum := sub.value
	sub.value = func(j int) ptx.F32 {
		lo, hi := r.weights[j/4].Unpack()
		if j%2 == 1 {
			lo = hi
		}
		return r.scale[j/2%2].Fma(lo, sum(j))
	}
	if i+1 < r.p.point.TileN/64 {
		sub.after = func() { r.fetch(i + 1) }
	}
}

// DHMap is the load map of dH [R, 2n].
func (x DX) DHMap(p driver.DevicePtr, rows int) driver.TensorMap {
	return rowMap(p, 2*x.Intermediate, rows, BlockRows)
}

// W1Map is the load map of W1 [E, 2n, d] for boxes of 64 neurons, gate or up,
// by a tile's columns: dimensions column in 64, neuron, 64 columns, gate or
// up, expert.
func (x DX) W1Map(p driver.DevicePtr, experts int, layout spec.GateUp) driver.TensorMap {
	row := uint64(x.Hidden) * bf16
	n := uint64(x.Intermediate)
	neuron, part := row, n*row
	if layout == spec.Interleaved {
		neuron, part = 2*row, row
	}
	return driver.TensorMap{
		Elem: driver.BF16, Rank: 5, Address: p,
		Dims:    [5]uint64{tile.Block, n, uint64(x.Hidden / tile.Block), 2, uint64(experts)},
		Strides: [4]uint64{neuron, tile.Block * bf16, part, 2 * n * row},
		Box:     [5]uint32{tile.Block, tile.K, uint32(x.Point.boxBlocks()), 1, 1},
		Swizzle: driver.Swizzle128, Promote: driver.Promote128,
	}
}

// DXMap is the store map of dX~ [R, d] for clipped 64-row boxes.
func (x DX) DXMap(p driver.DevicePtr, rows int) driver.TensorMap {
	return raggedMap(p, x.Hidden, rows)
}
