package tile

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/ptx"
)

// Dim is a dimension of a tensor: its extent, and the distance between adjacent
// elements along it, both in elements.
type Dim struct{ Extent, Stride int }

// ElementBytes is the size of an element of a tile. All formats have 16 bits.
const ElementBytes = 2

// Map returns the tensor map of a tensor at p that is moved in boxes, with
// 128-byte swizzle. The innermost dimension comes first and is contiguous.
// Elements are copied without conversion, and elements outside the tensor read as
// 0, so the same map serves every [Element].
func Map(p driver.DevicePtr, box []int, dims ...Dim) gpu.TensorMap {
	m := gpu.TensorMap{Elem: gpu.BF16, Rank: len(dims), Address: p, Swizzle: gpu.Swizzle128}
	for i, d := range dims {
		m.Dims[i], m.Box[i] = uint64(d.Extent), uint32(box[i])
		if i > 0 {
			m.Strides[i-1] = uint64(d.Stride) * ElementBytes
		}
	}
	return m
}

// LoadMap is [Map] for loads. They fill the L2 cache by lines of 128 bytes; lines
// of 256 bytes read too much (see examples/bench/h200/experiments.md).
func LoadMap(p driver.DevicePtr, box []int, dims ...Dim) gpu.TensorMap {
	m := Map(p, box, dims...)
	m.Promote = gpu.Promote128
	return m
}

// RowMap loads boxes of 64 columns and boxRows rows of a matrix [rows, width]
// as K-major tiles.
func RowMap(p driver.DevicePtr, width, rows, boxRows int) gpu.TensorMap {
	return LoadMap(p, []int{K, boxRows}, Dim{width, 1}, Dim{max(rows, 1), width})
}

// Tiles returns the number of tiles of 64 that cover a width.
func Tiles(width int) int { return (width + K - 1) / K }

// Atoms are tiles of a matrix that is Width wide, each 64 rows high and Columns
// wide. They are loaded MN-major, as atoms of 64 columns one after another.
// Elements past the width are 0.
type Atoms struct{ Width, Columns int }

// whole reports whether the matrix' width is a multiple of an atom's. If so, one box with three
// dimensions loads a tile: the column in an atom, the row, and the atom. If not, each atom has its
// own box, and the width clips the last one.
func (a Atoms) whole() bool { return a.Width%Block == 0 }

// Map returns the tensor map of the matrix at p with the given number of rows.
func (a Atoms) Map(p driver.DevicePtr, rows int) gpu.TensorMap {
	if !a.whole() {
		return RowMap(p, a.Width, rows, K)
	}
	return LoadMap(p, []int{Block, K, a.Columns / Block}, Dim{Block, 1}, Dim{max(rows, 1), a.Width}, Dim{a.Width / Block, Block})
}

// Load starts the loads of the tile that begins at row and column. column is a
// multiple of 64.
func (a Atoms) Load(k *ptx.Kernel, to ptx.Shared, m ptx.TensorMap, full ptx.Shared, row, column ptx.U32) {
	if a.whole() {
		k.TMALoad(to, m, full, ptx.Uint(0), row, column.DivI(Block))
		return
	}
	for i := range a.Columns / Block {
		k.TMALoad(to.At(i*BlockBytes), m, full, column.AddI(i*Block), row)
	}
}

// Deep are adjacent K-major tiles of a matrix that is Width wide, loaded together
// and stored one after another. Elements past the width are 0.
type Deep struct{ Width, Tiles int }

// Whole reports whether the width is a multiple of a tile. One box then loads all
// tiles, with dimensions column in its tile, row, tile. Otherwise each tile is a
// box, which the width clips.
func (d Deep) Whole() bool { return d.Width%K == 0 }

// Map returns the tensor map of the matrix at p. The first of dims and box are the
// rows, further ones follow.
func (d Deep) Map(p driver.DevicePtr, box []int, dims ...Dim) gpu.TensorMap {
	// The capacity is constant, so that a launch does not allocate.
	boxes, all := append(make([]int, 0, gpu.MaxTensorRank), K), make([]Dim, 0, gpu.MaxTensorRank)
	if d.Whole() {
		boxes, all = append(boxes, box[0], d.Tiles), append(all, Dim{K, 1}, dims[0], Dim{d.Width / K, K})
	} else {
		boxes, all = append(boxes, box[0]), append(all, Dim{d.Width, 1}, dims[0])
	}
	return LoadMap(p, append(boxes, box[1:]...), append(all, dims[1:]...)...)
}

// Each calls body for each box of the load that begins at tile kt and at row.
// first is the number of the box's first tile in the load, at its coordinates
// before those of further dimensions.
func (d Deep) Each(kt, row ptx.U32, body func(first int, at []ptx.U32)) {
	if d.Whole() {
		body(0, []ptx.U32{ptx.Uint(0), row, kt})
		return
	}
	for i := range d.Tiles {
		body(i, []ptx.U32{kt.AddI(i).MulI(K), row})
	}
}

// RaggedMap returns a map that stores 64 x 64 boxes of a matrix [rows, width] and
// can clip each after any row. Dimension 1 counts the box's own rows and ends at
// 64. Dimension 2 has the same stride, and the base is 64 rows before the tensor.
// A box of v valid rows at row r has the coordinates {column, 64-v, r+v}.
func RaggedMap(p driver.DevicePtr, width, rows int) gpu.TensorMap {
	return Map(p-RaggedBase(width), []int{64, RaggedRows, 1}, Dim{width, 1}, Dim{RaggedRows, width}, Dim{rows + 1, width})
}

// RaggedRows is the number of rows of a box of [RaggedMap].
const RaggedRows = 64

// RaggedBase returns the distance in bytes from the base of a ragged map to its
// tensor, whose rows have the given width.
func RaggedBase(width int) driver.DevicePtr {
	return driver.DevicePtr(RaggedRows * width * ElementBytes)
}
