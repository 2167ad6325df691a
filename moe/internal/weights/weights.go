// Package weights describes the layout of the experts' weights and biases in memory, and loads
// the weights as the B operand of a grouped product.
package weights

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// Matrix describes one of the weights, W1 or W2, for all experts. Each expert has a matrix [out,
// in]. W1 of a gated activation has two parts, gate and up.
type Matrix struct {
	// Out and In are the dimensions of one part.
	Out, In tile.Dim
	// Part is the dimension of gate and up. Its extent is 1 if there is no gate, or if the layout
	// has no separate dimension for gate and up.
	Part tile.Dim
	// Apart means that gate and up are separate tensors. The stride of Part is then meaningless.
	Apart bool
	// Expert is the dimension of the experts.
	Expert tile.Dim
}

// W1 returns the layer's W1. If gate and up are separate tensors, W3 is its second part.
func W1(c spec.Config) Matrix {
	d, n, width := c.Hidden, c.Intermediate, c.HWidth()
	m := Matrix{Part: tile.Dim{Extent: 1}, Apart: c.GateUp == spec.Apart, Expert: tile.Dim{Extent: c.NumExperts, Stride: width * d}}
	if m.Apart {
		width = n
		m.Expert.Stride = n * d
	}
	if c.Activation.Gated() {
		m.Part.Extent = 2
	}
	if c.InOut {
		m.In, m.Out, m.Part.Stride = tile.Dim{Extent: d, Stride: width}, tile.Dim{Extent: n, Stride: 1}, n
		if InPairs(c) {
			m.Out.Extent, m.Part = width, tile.Dim{Extent: 1}
		}
		return m
	}
	m.In, m.Out, m.Part.Stride = tile.Dim{Extent: d, Stride: 1}, tile.Dim{Extent: n, Stride: d}, n*d
	if c.GateUp == spec.Interleaved {
		m.Out.Stride, m.Part.Stride = 2*d, d
	}
	return m
}

// InPairs reports whether the gate and up weights of a neuron are neighbours in memory, so that
// every TMA box has both.
func InPairs(c spec.Config) bool { return c.InOut && c.GateUp == spec.Interleaved }

// Rows describes the rows of a tensor in the workspace. Each part is padded with zeros to a
// multiple of 64 columns.
type Rows struct{ Parts, Width int }

// Elements returns the length of a row.
func (r Rows) Elements() int { return r.Parts * r.Width }

// Bytes returns the size of a number of rows.
func (r Rows) Bytes(rows int) int64 { return int64(rows) * int64(r.Elements()) * tile.ElementBytes }

// A returns the layout of a row of A, the activation.
func A(c spec.Config) Rows { return Rows{1, whole(c.Intermediate)} }

// DH returns the layout of a row of dH, the gradient of H. A row has the gates and then the ups. If
// W1 has gates and ups in pairs, the row has pairs too.
func DH(c spec.Config) Rows {
	switch {
	case InPairs(c):
		return Rows{1, whole(2 * c.Intermediate)}
	case c.Activation.Gated():
		return Rows{2, whole(c.Intermediate)}
	}
	return A(c)
}

// whole rounds up to a multiple of the k-tile's width.
func whole(n int) int { return tile.Tiles(n) * tile.K }

// W2 returns the layer's W2.
func W2(c spec.Config) Matrix {
	d, n := c.Hidden, c.Intermediate
	m := Matrix{Part: tile.Dim{Extent: 1}, Expert: tile.Dim{Extent: c.NumExperts, Stride: n * d}}
	if c.InOut {
		m.In, m.Out = tile.Dim{Extent: n, Stride: d}, tile.Dim{Extent: d, Stride: 1}
	} else {
		m.In, m.Out = tile.Dim{Extent: n, Stride: 1}, tile.Dim{Extent: d, Stride: n}
	}
	return m
}

// Forward returns the B operand of a product with Out columns that sums over In.
func (m Matrix) Forward(t gemm.Tiling) B { return B{N: m.Out, K: m.In, matrix: m, Tiling: t} }

// Backward returns the B operand of a product with In columns that sums over Out.
func (m Matrix) Backward(t gemm.Tiling) B { return B{N: m.In, K: m.Out, matrix: m, Tiling: t} }

// B is a matrix of weights as the B operand of a product.
type B struct {
	// N is the dimension of the columns, and K is the dimension of the sum.
	N, K tile.Dim
	// Halves means that gate and up are the two halves of a tile. If it is false, a tile has
	// columns of one part.
	Halves bool
	Tiling gemm.Tiling
	matrix Matrix
}

// MNMajor reports whether the operand is contiguous along its columns.
func (b B) MNMajor() bool { return b.N.Stride == 1 }

// Maps returns the number of tensor maps.
func (b B) Maps() int {
	if b.matrix.Apart {
		return 2
	}
	return 1
}

// wholeAtoms reports whether the number of columns is a multiple of 64, the columns of a swizzle
// atom.
func (b B) wholeAtoms() bool { return b.N.Extent%tile.Block == 0 }

// boxColumns returns the number of columns of a box.
func (b B) boxColumns() int {
	switch {
	case !b.MNMajor() || b.Halves && b.wholeAtoms():
		return b.Tiling.TileN / 2
	case !b.wholeAtoms():
		return tile.Block
	}
	return b.Tiling.TileN / b.Tiling.ClusterM
}

// Map returns the tensor map of the tensor at address p. A box is a k-tile by boxColumns. Values
// outside of a part are 0.
func (b B) Map(p driver.DevicePtr) gpu.TensorMap {
	columns := b.boxColumns()
	// The capacity is constant, so that a launch does not allocate.
	box, dims := make([]int, 0, gpu.MaxTensorRank), make([]tile.Dim, 0, gpu.MaxTensorRank)
	switch {
	case !b.MNMajor():
		box, dims = append(box, tile.K, columns), append(dims, b.K, b.N)
	case b.wholeAtoms():
		box = append(box, tile.Block, tile.K, columns/tile.Block)
		dims = append(dims, tile.Dim{Extent: tile.Block, Stride: 1}, b.K, tile.Dim{Extent: b.N.Extent / tile.Block, Stride: tile.Block})
	default:
		box, dims = append(box, columns, tile.K), append(dims, b.N, b.K)
	}
	if b.hasPart() {
		box, dims = append(box, 1), append(dims, b.matrix.Part)
	}
	return tile.LoadMap(p, append(box, 1), append(dims, b.matrix.Expert)...)
}

// hasPart reports whether the map has a dimension for gate and up.
func (b B) hasPart() bool { return b.matrix.Part.Extent > 1 && !b.matrix.Apart }

// Load starts the loads of a stage: the tile's columns of the k-tile that starts at index k() of
// the sum. part is 0 for gate and 1 for up, for tiles with columns of one part.
func (b B) Load(p *gemm.Product, maps []ptx.TensorMap, s pipeline.Stage, t schedule.Tile, k func() ptx.U32, part int) {
	if b.MNMajor() && !b.Halves && b.Tiling.ClusterM == 1 { // only in this case may a tile end inside an atom
		boxes := 1
		if !b.wholeAtoms() {
			boxes = b.Tiling.TileN / tile.Block
		}
		for i := range boxes {
			p.K.TMALoad(s.Data.At(gemm.TileABytes+i*tile.BlockBytes), b.of(maps, ptx.Uint(part)), s.Full, b.at(t, ptx.Uint(0), i, k, ptx.Uint(part))...)
		}
		return
	}
	p.LoadB(s, t, func(half ptx.U32) []gemm.Box {
		of := ptx.Uint(part)
		if b.Halves {
			of = half
		}
		boxes := 1
		if b.MNMajor() && !b.wholeAtoms() {
			boxes = b.Tiling.TileN / 2 / tile.Block
		}
		var list []gemm.Box
		for i := range boxes {
			list = append(list, gemm.Box{Map: b.of(maps, of), At: b.at(t, half, i, k, of), Offset: i * tile.BlockBytes})
		}
		return list
	})
}

// of returns the map of gate (part 0) or of up (part 1).
func (b B) of(maps []ptx.TensorMap, part ptx.U32) ptx.TensorMap {
	if !b.matrix.Apart {
		return maps[0]
	}
	if n, ok := part.Const(); ok {
		return maps[n]
	}
	return ptx.SelectMap(part.EqI(0), maps[0], maps[1])
}

// at returns the coordinates of box i of one half of a tile.
func (b B) at(t schedule.Tile, half ptx.U32, i int, k func() ptx.U32, part ptx.U32) []ptx.U32 {
	var at []ptx.U32
	switch {
	case !b.MNMajor():
		at = []ptx.U32{k(), b.column(t, half)}
	case b.wholeAtoms():
		at = []ptx.U32{ptx.Uint(0), k(), b.atom(t, half)}
	default:
		at = []ptx.U32{b.column(t, half).AddI(i * tile.Block), k()}
	}
	if b.hasPart() {
		at = append(at, part)
	}
	return append(at, t.Expert)
}

// column returns the first column of one half of a tile.
func (b B) column(t schedule.Tile, half ptx.U32) ptx.U32 {
	if b.Halves {
		return t.Column.MulI(b.Tiling.TileN / 2)
	}
	return half.MulI(b.Tiling.TileN / 2).Add(t.Column.MulI(b.Tiling.TileN))
}

// atom returns the number of the first atom of one half of a tile.
func (b B) atom(t schedule.Tile, half ptx.U32) ptx.U32 {
	if b.Halves {
		return t.Column.MulI(b.Tiling.TileN / 2 / tile.Block)
	}
	return half.MulI(b.Tiling.TileN / 2 / tile.Block).Add(t.Column.MulI(b.Tiling.TileN / tile.Block))
}
