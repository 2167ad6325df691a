package tile

import (
	"sonicmoe/driver"
	"sonicmoe/ptx"
)

// Dim is a dimension of a tensor: its extent, and the distance between
// neighbours along it, both in elements.
type Dim struct{ Extent, Stride int }

// ElementBytes is the size of an element of a tile: all are 16-bit.
const ElementBytes = 2

// Map is the tensor map of a tensor at p that is moved in boxes, with 128-byte
// swizzle: the innermost dimension first, whose neighbours touch. Bits are moved as
// they are, and what lies outside is 0: one map does for every [Element].
func Map(p driver.DevicePtr, box []int, dims ...Dim) driver.TensorMap {
	m := driver.TensorMap{Elem: driver.BF16, Rank: len(dims), Address: p, Swizzle: driver.Swizzle128}
	for i, d := range dims {
		m.Dims[i], m.Box[i] = uint64(d.Extent), uint32(box[i])
		if i > 0 {
			m.Strides[i-1] = uint64(d.Stride) * ElementBytes
		}
	}
	return m
}

// LoadMap is [Map] for loads, which bring whole lines of 128 bytes into the L2
// cache. (Lines of 256 read too much: DeepSeek-V3 25.2 ms instead of 24.2.)
func LoadMap(p driver.DevicePtr, box []int, dims ...Dim) driver.TensorMap {
	m := Map(p, box, dims...)
	m.Promote = driver.Promote128
	return m
}

// RowMap loads boxes of 64 columns and boxRows rows of a matrix [rows, width]
// as K-major tiles.
func RowMap(p driver.DevicePtr, width, rows, boxRows int) driver.TensorMap {
	return LoadMap(p, []int{K, boxRows}, Dim{width, 1}, Dim{max(rows, 1), width})
}

// Tiles is how many tiles of 64 a width takes: the last may be in part.
func Tiles(width int) int { return (width + K - 1) / K }

// Atoms are tiles, 64 rows high and Columns wide, of a matrix that is Width
// wide, loaded as MN-major ones: atom after atom of 64 columns. What lies past the
// width is 0.
type Atoms struct{ Width, Columns int }

// whole: all atoms are, so that one box has those of a tile, in dimensions column
// in its atom, row, atom. Else each atom is a box, which the width clips.
func (a Atoms) whole() bool { return a.Width%Block == 0 }

// Map is the map of the matrix at p, of so many rows.
func (a Atoms) Map(p driver.DevicePtr, rows int) driver.TensorMap {
	if !a.whole() {
		return RowMap(p, a.Width, rows, K)
	}
	return LoadMap(p, []int{Block, K, a.Columns / Block}, Dim{Block, 1}, Dim{max(rows, 1), a.Width}, Dim{a.Width / Block, Block})
}

// Load starts the loads of the tile that begins at a row and column, a multiple of
// 64.
func (a Atoms) Load(k *ptx.Kernel, to ptx.Shared, m ptx.TensorMap, full ptx.Shared, row, column ptx.U32) {
	if a.whole() {
		k.TMALoad(to, m, full, ptx.Uint(0), row, column.DivI(Block))
		return
	}
	for i := range a.Columns / Block {
		k.TMALoad(to.At(i*BlockBytes), m, full, column.AddI(i*Block), row)
	}
}

// Deep are so many K-major tiles side by side in a matrix that is Width wide,
// loaded one below the other. What lies past the width is 0.
type Deep struct{ Width, Tiles int }

// Whole: all tiles of the matrix are, so that one box has those of a load, in
// dimensions column in its tile, row, tile. Else each is a box, which the width
// clips.
func (d Deep) Whole() bool { return d.Width%K == 0 }

// Map is the map of the matrix at p whose further dimensions, and boxes, begin with
// its rows.
func (d Deep) Map(p driver.DevicePtr, box []int, dims ...Dim) driver.TensorMap {
	// Of a constant capacity, so that a launch takes no memory.
	boxes, all := append(make([]int, 0, driver.MaxTensorRank), K), make([]Dim, 0, driver.MaxTensorRank)
	if d.Whole() {
		boxes, all = append(boxes, box[0], d.Tiles), append(all, Dim{K, 1}, dims[0], Dim{d.Width / K, K})
	} else {
		boxes, all = append(boxes, box[0]), append(all, Dim{d.Width, 1}, dims[0])
	}
	return LoadMap(p, append(boxes, box[1:]...), append(all, dims[1:]...)...)
}

// Each calls body for each box of a load from tile kt and a row on: the first of its
// tiles in the load, and its coordinates before those of further dimensions.
func (d Deep) Each(kt, row ptx.U32, body func(first int, at []ptx.U32)) {
	if d.Whole() {
		body(0, []ptx.U32{ptx.Uint(0), row, kt})
		return
	}
	for i := range d.Tiles {
		body(i, []ptx.U32{kt.AddI(i).MulI(K), row})
	}
}

// RaggedMap stores 64 x 64 boxes of a matrix [rows, width] and clips them at any
// row: dimension 1 counts the box's own rows and ends at 64, dimension 2 has
// the same stride and the base lies 64 rows before the tensor. A box of v
// valid rows at row r goes to coordinates {column, 64-v, r+v}.
func RaggedMap(p driver.DevicePtr, width, rows int) driver.TensorMap {
	return Map(p-RaggedBase(width), []int{64, RaggedRows, 1}, Dim{width, 1}, Dim{RaggedRows, width}, Dim{rows + 1, width})
}

// RaggedRows is the rows of a box that is clipped at any row.
const RaggedRows = 64

// RaggedBase is how far before a tensor with rows of that width its ragged map
// begins, in bytes.
func RaggedBase(width int) driver.DevicePtr {
	return driver.DevicePtr(RaggedRows * width * ElementBytes)
}
