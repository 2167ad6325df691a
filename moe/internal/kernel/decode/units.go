package decode

import (
	"sonicmoe/driver"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// units are weights in boxes of 64 rows of one part.
type units struct{ weights.Matrix }

// mnMajor reports whether neighbours in memory are rows.
func (u units) mnMajor() bool { return u.Out.Stride == 1 }

// hasPart: the map has a dimension for gate and up.
func (u units) hasPart() bool { return u.Part.Extent > 1 && !u.Apart }

// tensorMap is the map of the tensor at p.
func (u units) tensorMap(p driver.DevicePtr) driver.TensorMap {
	// Of a constant capacity, so that a launch takes no memory.
	box, dims := append(make([]int, 0, driver.MaxTensorRank), tile.K, unitRows), make([]tile.Dim, 0, driver.MaxTensorRank)
	if u.mnMajor() {
		dims = append(dims, u.Out, u.In)
	} else {
		dims = append(dims, u.In, u.Out)
	}
	if u.hasPart() {
		box, dims = append(box, 1), append(dims, u.Part)
	}
	return tile.LoadMap(p, append(box, 1), append(dims, u.Expert)...)
}

// at are the coordinates of a block's weights: of the sum the 64 from column on.
func (u units) at(b block, column ptx.U32, part int) []ptx.U32 {
	row := b.unit.MulI(unitRows)
	at := []ptx.U32{column, row}
	if u.mnMajor() {
		at = []ptx.U32{row, column}
	}
	if u.hasPart() {
		at = append(at, ptx.Uint(part))
	}
	return append(at, b.expert)
}
