package tile

import "sonicmoe/driver"

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

// AtomMap loads boxes, 64 rows high and columns wide, of a matrix [rows, width]
// as MN-major tiles, atom after atom of 64 columns: dimensions column in its
// atom, row, atom.
func AtomMap(p driver.DevicePtr, width, rows, columns int) driver.TensorMap {
	return LoadMap(p, []int{Block, K, columns / Block}, Dim{Block, 1}, Dim{max(rows, 1), width}, Dim{width / Block, Block})
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
