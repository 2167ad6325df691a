package decode

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// units are weights that are loaded in boxes of 64 rows of one part.
type units struct{ weights.Matrix }

// mnMajor reports whether rows are neighbours in memory.
func (u units) mnMajor() bool { return u.Out.Stride == 1 }

// hasPart reports whether the map has a dimension for gate and up.
func (u units) hasPart() bool { return u.Part.Extent > 1 && !u.Apart }

// tensorMap returns the map of the tensor at p.
func (u units) tensorMap(p driver.DevicePtr) gpu.TensorMap {
	// The capacity is constant so that a launch allocates nothing.
	box, dims := append(make([]int, 0, gpu.MaxTensorRank), tile.K, unitRows), make([]tile.Dim, 0, gpu.MaxTensorRank)
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

// at returns the coordinates of a block's weights in the k-tile that starts at column.
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

// formatOf returns the format of weights in units, or none.
func formatOf(c spec.Config, areUnits bool) fragments.Format {
	if areUnits {
		return fragments.FormatOf(c)
	}
	return fragments.Format{}
}

// loadPacked returns the load of a unit's block of a packed matrix.
func loadPacked(k *ptx.Kernel, at ptx.Global, m fragments.Matrix) loadUnit {
	return func(to, full ptx.Shared, b block, column ptx.U32, _ int) {
		unit := at.Index(b.expert.MulI(m.Units).Add(b.unit), m.UnitBytes())
		k.BulkLoad(to, unit.Index(column.DivI(fragments.Columns), m.BlockBytes()), ptx.Uint(m.BlockBytes()), full)
	}
}
