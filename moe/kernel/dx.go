package kernel

import (
	"sonicmoe/driver"
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
	const name = "moe_dx"
	k := ptx.NewKernel(name)
	columns := (x.Hidden + x.Point.TileN - 1) / x.Point.TileN
	dh, w, dx := k.ParamTensorMap("dh"), k.ParamTensorMap("w1"), k.ParamTensorMap("dx")
	var router routerTerm
	if x.Router {
		router = routerTerm{k: k, dlrow: k.ParamPtr("dlrow"), wr: k.ParamPtr("wr"), width: x.Hidden}
	}
	p := newProduct(k, x.Point, 2*x.Intermediate/tile.K, columns, 1, 1)
	p.weightsMN = true
	if x.Router {
		p.before = func(s *storer, t schedule.Tile) { router.fetch(p, s, t) }
	}
	p.run(40, func() { x.load(p, dh, w) }, func(s *storer, t schedule.Tile, acc []ptx.F32) {
		column := t.Column.MulI(x.Point.TileN)
		s.put(x.Point.TileN/64, func(i int) subTile {
			sums := acc[32*i : 32*i+32]
			if x.Router {
				sums = router.add(sums, i)
			}
			return subTile{sums, dx, []ptx.U32{column.AddI(64 * i)}}
		})
	})
	return build(k, name, productThreads, x.Point.sharedBytes())
}

// load is one thread that starts both tiles' TMA loads. Rows past the
// expert's end are the next expert's: they are multiplied and dropped.
func (x DX) load(p *product, dh, w ptx.TensorMap) {
	k := p.k
	first := p.tid.ShrI(5).EqI(2 * 4)
	k.If(first, func() {
		k.If(k.ElectOne(), func() {
			at := p.ring.Producer()
			publisher := p.queue.Publisher()
			p.queue.Reader(ptx.True()).Each(func(t schedule.Tile) {
				publisher.Publish()
				block := t.Column.MulI(x.Point.TileN / tile.Block)
				for part := range 2 {
					k.For(ptx.Uint(0), ptx.Uint(x.Intermediate), ptx.Uint(tile.K), func(neuron ptx.U32) {
						s := at.Acquire()
						k.MbarrierArriveExpectTx(s.Full, ptx.Uint(x.Point.stageBytes()))
						k.TMALoad(s.Data, dh, s.Full, neuron.AddI(part*x.Intermediate), t.Row)
						k.TMALoad(s.Data.At(tileABytes), w, s.Full, ptx.Uint(0), neuron, block, ptx.Uint(part), t.Expert)
						at.Advance()
					})
				}
			})
		})
	})
}

// routerTerm adds dlrow[row]·W_r[expert] to a warpgroup's sums. What a thread
// needs of both is loaded under the main loop.
type routerTerm struct {
	k         *ptx.Kernel
	dlrow, wr ptx.Global
	width     int // of a row of W_r
	scale     [2]ptx.F32
	weights   []ptx.BF16x2
}

// fetch loads the factors of the thread's rows, and W_r in the thread's
// columns of the tile.
func (r *routerTerm) fetch(p *product, s *storer, t schedule.Tile) {
	f := tile.NewFragment(p.tid.AndI(127))
	for h := range r.scale {
		row := s.row.Add(f.Row.AddI(8 * h).Min(s.rows.SubI(1))) // rows past the end are dropped
		r.scale[h] = ptx.LdGlobal[ptx.F32](r.dlrow.Index(row, 4))
	}
	r.weights = r.weights[:0]
	of := r.wr.Index(t.Expert, r.width*bf16).Plus(f.Column.MulI(bf16).U64())
	for i := range p.point.TileN / 64 {
		// Groups past the last column repeat it: they are dropped.
		column := t.Column.MulI(p.point.TileN).AddI(64 * i).Min(ptx.Uint(r.width - 64))
		group := of.Index(column, bf16)
		for j := range 8 {
			r.weights = append(r.weights, ptx.LdGlobal[ptx.U32](group.At(8*j*bf16), ".nc").AsBF16x2())
		}
	}
}

// add gives the sums of 64-column group i with the term added.
func (r *routerTerm) add(acc []ptx.F32, i int) []ptx.F32 {
	sums := make([]ptx.F32, len(acc))
	for j := range acc {
		lo, hi := r.weights[8*i+j/4].Unpack()
		w := lo
		if j%2 == 1 {
			w = hi
		}
		sums[j] = r.scale[j/2%2].Fma(w, acc[j])
	}
	return sums
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
		Box:     [5]uint32{tile.Block, tile.K, uint32(x.Point.TileN / tile.Block), 1, 1},
		Swizzle: driver.Swizzle128, Promote: driver.Promote128,
	}
}

// DXMap is the store map of dX~ [R, d] for clipped 64-row boxes.
func (x DX) DXMap(p driver.DevicePtr, rows int) driver.TensorMap {
	return raggedMap(p, x.Hidden, rows)
}
