// Package weights says how an expert's weights lie in memory, and loads them as
// the B operand of a grouped product.
package weights

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// Matrix is the weights of all experts, out × in each, in one or two parts.
type Matrix struct {
	// Out and In are the dimensions of one part.
	Out, In tile.Dim
	// Part are gate and up: two, or one where there is no gate or where the two
	// cannot be told apart by a dimension.
	Part tile.Dim
	// Apart: the parts are tensors of their own, Part's stride means nothing.
	Apart bool
	// Expert are the experts.
	Expert tile.Dim
}

// W1 is a layer's W1, with W3 where gate and up are apart.
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
	if c.WeightOrder == spec.InOut {
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

// InPairs reports whether gate and up of a neuron touch in memory, so that no
// box of TMA has one without the other.
func InPairs(c spec.Config) bool { return c.WeightOrder == spec.InOut && c.GateUp == spec.Interleaved }

// Rows are packed rows of a layer's workspace: parts of a width that is whole
// tiles of 64. What lies past a part's last neuron is 0.
type Rows struct{ Parts, Width int }

// Elements is the length of a row.
func (r Rows) Elements() int { return r.Parts * r.Width }

// Bytes is the size of so many.
func (r Rows) Bytes(rows int) int64 { return int64(rows) * int64(r.Elements()) * tile.ElementBytes }

// A are the rows of the activation.
func A(c spec.Config) Rows { return Rows{1, whole(c.Intermediate)} }

// DH are the rows of the gradient of H: gate and up, or neurons in pairs as W1
// has them.
func DH(c spec.Config) Rows {
	switch {
	case InPairs(c):
		return Rows{1, whole(2 * c.Intermediate)}
	case c.Activation.Gated():
		return Rows{2, whole(c.Intermediate)}
	}
	return A(c)
}

func whole(n int) int { return tile.Tiles(n) * tile.K }

// W2 is a layer's W2.
func W2(c spec.Config) Matrix {
	d, n := c.Hidden, c.Intermediate
	m := Matrix{Part: tile.Dim{Extent: 1}, Expert: tile.Dim{Extent: c.NumExperts, Stride: n * d}}
	if c.WeightOrder == spec.InOut {
		m.In, m.Out = tile.Dim{Extent: n, Stride: d}, tile.Dim{Extent: d, Stride: 1}
	} else {
		m.In, m.Out = tile.Dim{Extent: n, Stride: 1}, tile.Dim{Extent: d, Stride: n}
	}
	return m
}

// Forward is the matrix as B of a product with Out columns, which sums over In.
func (m Matrix) Forward(t gemm.Tiling) B { return B{N: m.Out, K: m.In, matrix: m, Tiling: t} }

// Backward is the matrix as B of a product with In columns, which sums over Out.
func (m Matrix) Backward(t gemm.Tiling) B { return B{N: m.In, K: m.Out, matrix: m, Tiling: t} }

// B is weights as the B operand of a product.
type B struct {
	// N are the columns, K is summed over.
	N, K tile.Dim
	// Halves: gate and up are the halves of a tile, else it is of one part.
	Halves bool
	Tiling gemm.Tiling
	matrix Matrix
}

// MNMajor reports whether neighbours in memory are columns.
func (b B) MNMajor() bool { return b.N.Stride == 1 }

// Maps is how many tensor maps there are.
func (b B) Maps() int {
	if b.matrix.Apart {
		return 2
	}
	return 1
}

// wholeAtoms: the columns of an MN-major operand are whole atoms of 64.
func (b B) wholeAtoms() bool { return b.N.Extent%tile.Block == 0 }

// boxColumns is the width of a box.
func (b B) boxColumns() int {
	switch {
	case !b.MNMajor() || b.Halves && b.wholeAtoms():
		return b.Tiling.TileN / 2
	case !b.wholeAtoms():
		return tile.Block
	}
	return b.Tiling.TileN / b.Tiling.ClusterM
}

// Map is the map of the tensor at p: boxes of 64 of the sum by boxColumns.
// Outside of a part everything is 0.
func (b B) Map(p driver.DevicePtr) driver.TensorMap {
	columns := b.boxColumns()
	// Of a constant capacity, so that a launch takes no memory.
	box, dims := make([]int, 0, driver.MaxTensorRank), make([]tile.Dim, 0, driver.MaxTensorRank)
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

// hasPart: the map has a dimension for gate and up.
func (b B) hasPart() bool { return b.matrix.Part.Extent > 1 && !b.matrix.Apart }

// Load starts the loads of a stage: of the sum the 64 from k on, of the columns
// the tile's. part is gate (0) or up (1) of a tile that is of one of them.
func (b B) Load(p *gemm.Product, maps []ptx.TensorMap, s pipeline.Stage, t schedule.Tile, k func() ptx.U32, part int) {
	if b.MNMajor() && !b.Halves && b.Tiling.ClusterM == 1 { // whose halves need not be whole atoms
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

// of is the map of gate (0) or up (1).
func (b B) of(maps []ptx.TensorMap, part ptx.U32) ptx.TensorMap {
	if !b.matrix.Apart {
		return maps[0]
	}
	if n, ok := part.Const(); ok {
		return maps[n]
	}
	return ptx.SelectMap(part.EqI(0), maps[0], maps[1])
}

// at are the coordinates of box i of a half of a tile.
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

// column is the first column of a half of a tile.
func (b B) column(t schedule.Tile, half ptx.U32) ptx.U32 {
	if b.Halves {
		return t.Column.MulI(b.Tiling.TileN / 2)
	}
	return half.MulI(b.Tiling.TileN / 2).Add(t.Column.MulI(b.Tiling.TileN))
}

// atom is its first atom.
func (b B) atom(t schedule.Tile, half ptx.U32) ptx.U32 {
	if b.Halves {
		return t.Column.MulI(b.Tiling.TileN / 2 / tile.Block)
	}
	return half.MulI(b.Tiling.TileN / 2 / tile.Block).Add(t.Column.MulI(b.Tiling.TileN / tile.Block))
}
