package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// Down is the down-projection: Y = A·W2ᵀ of each expert's packed rows.
type Down struct {
	Hidden, Intermediate int
	Point                Point
}

// Build emits the kernel.
func (d Down) Build() (Kernel, error) {
	const name = "moe_down"
	k := ptx.NewKernel(name)
	columns := (d.Hidden + d.Point.TileN - 1) / d.Point.TileN
	a, w, y := k.ParamTensorMap("a"), k.ParamTensorMap("w2"), k.ParamTensorMap("y")
	p := newProduct(k, d.Point, d.Intermediate/tile.K, columns, 1, 1)
	fill := func(at *pipeline.Cursor, t schedule.Tile) { d.load(p, at, t, a, w) }
	p.run(func() { p.loadAlone(fill) }, func(s *storer, t schedule.Tile, acc []ptx.F32) {
		column := t.Column.MulI(d.Point.TileN)
		s.put(d.Point.TileN/64, func(i int) subTile {
			return subTile{value: registers(acc[32*i : 32*i+32]), to: y, lead: []ptx.U32{column.AddI(64 * i)}}
		})
	})
	return build(k, name, productThreads, d.Point.sharedBytes())
}

// load starts the loads of a tile.
func (d Down) load(p *product, at *pipeline.Cursor, t schedule.Tile, a, w ptx.TensorMap) {
	k := p.k
	column := t.Column.MulI(d.Point.TileN)
	k.For(ptx.Uint(0), ptx.Uint(p.kTiles), ptx.Uint(1), func(kt ptx.U32) {
		s := at.Acquire()
		k.MbarrierArriveExpectTx(s.Full, ptx.Uint(d.Point.stageBytes()))
		k.TMALoad(s.Data, a, s.Full, kt.MulI(tile.K), t.Row)
		p.loadHalves(s, t, w, func(part ptx.U32) []ptx.U32 {
			return []ptx.U32{kt.MulI(tile.K), part.MulI(d.Point.TileN / 2).Add(column), t.Expert}
		})
		at.Advance()
	})
}

// AMap is the load map of A [R, n].
func (d Down) AMap(p driver.DevicePtr, rows int) driver.TensorMap {
	return rowMap(p, d.Intermediate, rows, BlockRows)
}

// W2Map is the load map of W2 [E, d, n].
func (d Down) W2Map(p driver.DevicePtr, experts int) driver.TensorMap {
	return expertMap(p, d.Intermediate, d.Hidden, experts, d.Point.TileN/2)
}

// YMap is the store map of Y [R, d] for clipped 64-row boxes.
func (d Down) YMap(p driver.DevicePtr, rows int) driver.TensorMap {
	return raggedMap(p, d.Hidden, rows)
}
