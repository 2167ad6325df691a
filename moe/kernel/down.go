package kernel

import (
	"sonicmoe/driver"
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
	p.run(func() { d.load(p, a, w) }, func(s *storer, t schedule.Tile, acc []ptx.F32) {
		column := t.Column.MulI(d.Point.TileN)
		s.put(d.Point.TileN/64, func(i int) subTile {
			return subTile{value: registers(acc[32*i : 32*i+32]), to: y, lead: []ptx.U32{column.AddI(64 * i)}}
		})
	})
	return build(k, name, productThreads, d.Point.sharedBytes())
}

// load is one thread that starts both tiles' TMA loads. Rows past the
// expert's end are the next expert's: they are multiplied and dropped.
func (d Down) load(p *product, a, w ptx.TensorMap) {
	k := p.k
	first := p.tid.ShrI(5).EqI(2 * 4)
	k.If(first, func() {
		k.If(k.ElectOne(), func() {
			at := p.ring.Producer()
			var publisher *schedule.Publisher
			k.If(p.queue.Publishes(), func() { publisher = p.queue.Publisher() })
			p.queue.Reader(ptx.True()).Each(func(t schedule.Tile) {
				k.If(p.queue.Publishes(), publisher.Publish)
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
			})
		})
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
