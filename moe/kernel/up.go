package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// Up is the up-projection: H = X[rows]·W1ᵀ, A = silu(gate)·up. The rows of X
// are gathered as they are loaded; the activation and the stores of H and A
// run in the epilogue. One half of a tile's columns is gate, the other up, so
// that a thread holds both values of a neuron, whatever W1's layout.
type Up struct {
	Hidden, Intermediate int
	// SaveH stores H, which backward needs.
	SaveH bool
	Point Point
}

// Build emits the kernel.
func (u Up) Build() (Kernel, error) {
	name := "moe_up"
	if !u.SaveH {
		name = "moe_up_inference" // errors go by the name
	}
	k := ptx.NewKernel(name)
	half := u.Point.TileN / 2
	columns := (u.Intermediate + half - 1) / half
	x, gather := k.ParamPtr("x"), k.ParamPtr("gather")
	w, a := k.ParamTensorMap("w1"), k.ParamTensorMap("a")
	var h ptx.TensorMap
	if u.SaveH {
		h = k.ParamTensorMap("h")
	}
	p := newProduct(k, u.Point, u.Hidden/tile.K, columns, gatherArrivals, gatherReaders)
	p.gathered = true
	g := gatherer{product: p, x: x, gather: gather, rowBytes: u.Hidden * bf16, loadB: func(s pipeline.Stage, t schedule.Tile, kt ptx.U32) {
		p.loadHalves(s, t, w, func(part ptx.U32) []ptx.U32 {
			return []ptx.U32{kt.MulI(tile.K), t.Column.MulI(half), part, t.Expert}
		})
	}}
	p.run(g.load, func(s *storer, t schedule.Tile, acc []ptx.F32) {
		u.epilogue(k, s, t, acc, a, h)
	})
	return build(k, name, productThreads, u.Point.sharedBytes())
}

// epilogue stores, for each 64 neurons, gate and up of H and their A.
func (u Up) epilogue(k *ptx.Kernel, s *storer, t schedule.Tile, acc []ptx.F32, a, h ptx.TensorMap) {
	half := u.Point.TileN / 2
	neuron := t.Column.MulI(half)
	kinds := 1
	if u.SaveH {
		kinds = 3
	}
	s.put(half/64*kinds, func(i int) subTile {
		at := i / kinds * 32
		gate, up := acc[at:at+32], acc[len(acc)/2+at:len(acc)/2+at+32]
		column := neuron.AddI(i / kinds * 64)
		switch i%kinds + 3 - kinds {
		case 0:
			return subTile{value: registers(gate), to: h, lead: []ptx.U32{column, ptx.Uint(0)}}
		case 1:
			return subTile{value: registers(up), to: h, lead: []ptx.U32{column, ptx.Uint(1)}}
		}
		return subTile{value: func(j int) ptx.F32 { return silu(gate[j]).Mul(up[j]) }, to: a, lead: []ptx.U32{column}}
	})
}

// silu is x·sigmoid(x).
func silu(x ptx.F32) ptx.F32 { return x.Mul(sigmoid(x)) }

// sigmoid is 1/(1+2^(-x·log2 e)).
func sigmoid(x ptx.F32) ptx.F32 {
	const log2e = 1.4426950408889634
	t := x.Mul(ptx.Float(-log2e)).Ex2Approx(".ftz")
	return t.Add(ptx.Float(1)).RcpApprox(".ftz")
}

// W1Map is the load map of W1 [E, 2n, d] for boxes of one tile's gate or up
// rows: dimensions d, neuron, gate or up, expert.
func (u Up) W1Map(p driver.DevicePtr, experts int, layout spec.GateUp) driver.TensorMap {
	row := uint64(u.Hidden) * bf16
	n := uint64(u.Intermediate)
	neuron, part := row, n*row
	if layout == spec.Interleaved {
		neuron, part = 2*row, row
	}
	return driver.TensorMap{
		Elem: driver.BF16, Rank: 4, Address: p,
		Dims:    [5]uint64{uint64(u.Hidden), n, 2, uint64(experts)},
		Strides: [4]uint64{neuron, part, 2 * n * row},
		Box:     [5]uint32{64, uint32(u.Point.TileN / 2), 1, 1},
		Swizzle: driver.Swizzle128, Promote: driver.Promote128,
	}
}

// HMap is the store map of H [R, 2n], gate then up, for clipped 64-row boxes.
func (u Up) HMap(p driver.DevicePtr, rows int) driver.TensorMap {
	n := uint64(u.Intermediate)
	pitch := 2 * n * bf16
	return driver.TensorMap{
		Elem: driver.BF16, Rank: 4, Address: p - driver.DevicePtr(warpgroupRows*pitch),
		Dims:    [5]uint64{n, 2, warpgroupRows, uint64(rows) + 1},
		Strides: [4]uint64{n * bf16, pitch, pitch},
		Box:     [5]uint32{64, 1, warpgroupRows, 1},
		Swizzle: driver.Swizzle128,
	}
}

// AMap is the store map of A [R, n] for clipped 64-row boxes.
func (u Up) AMap(p driver.DevicePtr, rows int) driver.TensorMap {
	return raggedMap(p, u.Intermediate, rows)
}
