package tile

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/ptx"
)

// Dim is a dimension of a tensor: its extent, and the distance between neighbours along it, both in
// elements.
type Dim struct{ Extent, Stride int }

// ElementBytes is the size of an element of a tile. All formats of Element have 16 bits.
const ElementBytes = 2

// Map returns the tensor map of a tensor at p. TMA moves it in boxes, with 128-byte swizzle. The
// innermost dimension comes first in box and dims, and is contiguous. Elements are copied without
// conversion, and elements outside the tensor are read as 0, so the same map serves every
// [Element].
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

// LoadMap does the same as [Map] for a tensor that is only loaded. Its loads fill the L2 cache in
// lines of 128 bytes; lines of 256 bytes would read too much (see
// examples/bench/h200/experiments.md).
func LoadMap(p driver.DevicePtr, box []int, dims ...Dim) gpu.TensorMap {
	m := Map(p, box, dims...)
	m.Promote = gpu.Promote128
	return m
}

// RowMap returns the map that loads K-major tiles of a matrix [rows, width]: a box is boxRows rows
// by 64 columns.
func RowMap(p driver.DevicePtr, width, rows, boxRows int) gpu.TensorMap {
	return LoadMap(p, []int{K, boxRows}, Dim{width, 1}, Dim{max(rows, 1), width})
}

// Tiles returns the number of k-tiles, which are 64 wide, that cover a width.
func Tiles(width int) int { return (width + K - 1) / K }

// Atoms describes MN-major tiles of a matrix that is Width wide. A tile is 64 rows high and Columns
// wide. In shared memory it is a sequence of atoms, which are 64 columns wide. Elements past Width
// are 0.
type Atoms struct{ Width, Columns int }

// whole reports whether Width is a multiple of an atom's 64 columns. If so, one box loads a tile;
// its dimensions are the column in an atom, the row, and the atom. If not, each atom has its own
// box, and Width clips the last one.
func (a Atoms) whole() bool { return a.Width%Block == 0 }

// Map returns the tensor map of the matrix at p, which has the given number of rows.
func (a Atoms) Map(p driver.DevicePtr, rows int) gpu.TensorMap {
	if !a.whole() {
		return RowMap(p, a.Width, rows, K)
	}
	return LoadMap(p, []int{Block, K, a.Columns / Block}, Dim{Block, 1}, Dim{max(rows, 1), a.Width}, Dim{a.Width / Block, Block})
}

// Load starts the loads of the tile that begins at row and column. column must be a multiple of 64.
func (a Atoms) Load(k *ptx.Kernel, to ptx.Shared, m ptx.TensorMap, full ptx.Shared, row, column ptx.U32) {
	if a.whole() {
		k.TMALoad(to, m, full, ptx.Uint(0), row, column.DivI(Block))
		return
	}
	for i := range a.Columns / Block {
		k.TMALoad(to.At(i*BlockBytes), m, full, column.AddI(i*Block), row)
	}
}

// Deep describes several adjacent K-major tiles of a matrix that is Width wide. They are loaded
// together, and lie one after another in shared memory. Elements past Width are 0.
type Deep struct{ Width, Tiles int }

// Whole reports whether Width is a multiple of a tile's 64 columns. If so, one box loads all Tiles;
// its dimensions are the column in a tile, the row, and the tile. If not, a box loads one tile, and
// columns from Width on are out of its bounds.
func (d Deep) Whole() bool { return d.Width%K == 0 }

// Map returns the tensor map of the matrix at p. The first entries of dims and box describe the
// rows, the others further dimensions.
func (d Deep) Map(p driver.DevicePtr, box []int, dims ...Dim) gpu.TensorMap {
	// The capacities are constants, so that the slices stay on the stack and a launch does not
	// allocate.
	boxes, all := append(make([]int, 0, gpu.MaxTensorRank), K), make([]Dim, 0, gpu.MaxTensorRank)
	if d.Whole() {
		boxes, all = append(boxes, box[0], d.Tiles), append(all, Dim{K, 1}, dims[0], Dim{d.Width / K, K})
	} else {
		boxes, all = append(boxes, box[0]), append(all, Dim{d.Width, 1}, dims[0])
	}
	return LoadMap(p, append(boxes, box[1:]...), append(all, dims[1:]...)...)
}

// Each calls body for each box of a load that begins at tile kt and at row. Argument first of body
// is the number, within the load, of the first tile in the box. Argument at has the box's
// coordinates in the first dimensions; body appends those of further dimensions, if there are any.
func (d Deep) Each(kt, row ptx.U32, body func(first int, at []ptx.U32)) {
	if d.Whole() {
		body(0, []ptx.U32{ptx.Uint(0), row, kt})
		return
	}
	for i := range d.Tiles {
		body(i, []ptx.U32{kt.AddI(i).MulI(K), row})
	}
}

// RaggedMap returns a map that stores boxes of 64 x 64 elements of a matrix [rows, width], and can
// clip each box after any of its rows. Dimension 1 ends after 64 rows, so it clips the box.
// Dimension 2 has the same stride and selects the place in the matrix. To make up for the sum of
// both coordinates, the base is 64 rows before the matrix. A box with v valid rows at row r has the
// coordinates {column, 64-v, r+v}.
func RaggedMap(p driver.DevicePtr, width, rows int) gpu.TensorMap {
	return Map(p-RaggedBase(width), []int{64, RaggedRows, 1}, Dim{width, 1}, Dim{RaggedRows, width}, Dim{rows + 1, width})
}

// RaggedRows is the number of rows of a box of [RaggedMap].
const RaggedRows = 64

// RaggedBase returns the distance in bytes from the base of a ragged map to its matrix, whose rows
// have the given width.
func RaggedBase(width int) driver.DevicePtr {
	return driver.DevicePtr(RaggedRows * width * ElementBytes)
}
