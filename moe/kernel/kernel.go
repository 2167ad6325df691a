package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/jit/schedule"
	"sonicmoe/ptx"
)

// Kernel is an emitted kernel with what its launch needs.
type Kernel struct {
	Module *ptx.Module
	// Name is the entry's name.
	Name string
	// Threads and SharedBytes are for each CTA.
	Threads, SharedBytes int
	// CTAs is the CTAs of a cluster; 0 where there are none.
	CTAs int
}

func build(k *ptx.Kernel, name string, threads, sharedBytes int) (Kernel, error) {
	m, err := k.Build()
	if err != nil {
		return Kernel{}, err
	}
	return Kernel{Module: m, Name: name, Threads: threads, SharedBytes: sharedBytes, CTAs: m.Entry(name).Cluster}, nil
}

// BlockRows is the rows of a row block: what one CTA multiplies at a time.
const BlockRows = schedule.TileRows

// warpgroupRows is the rows of a block that one math warpgroup owns.
const warpgroupRows = 64

const bf16 = 2 // bytes

// rowMap is the map of row-major rows of width bf16 elements with 128-byte
// swizzle, loaded in boxes of 64 x boxRows.
func rowMap(p driver.DevicePtr, width, rows, boxRows int) driver.TensorMap {
	return driver.TensorMap{
		Elem: driver.BF16, Rank: 2, Address: p,
		Dims:    [5]uint64{uint64(width), uint64(max(rows, 1))},
		Strides: [4]uint64{uint64(width) * bf16},
		Box:     [5]uint32{64, uint32(boxRows)},
		Swizzle: driver.Swizzle128, Promote: driver.Promote128,
	}
}

// expertMap is the map of [E, rows, width] weights, loaded in boxes of 64 x
// boxRows of one expert.
func expertMap(p driver.DevicePtr, width, rows, experts, boxRows int) driver.TensorMap {
	return driver.TensorMap{
		Elem: driver.BF16, Rank: 3, Address: p,
		Dims:    [5]uint64{uint64(width), uint64(rows), uint64(experts)},
		Strides: [4]uint64{uint64(width) * bf16, uint64(width) * uint64(rows) * bf16},
		Box:     [5]uint32{64, uint32(boxRows), 1},
		Swizzle: driver.Swizzle128, Promote: driver.Promote128,
	}
}

// raggedMap is a store map of rows [R, width] that clips a 64-row box at any
// row: dimension 1 counts the box's own rows and ends at 64, dimension 2 has
// the same stride and the base lies 64 rows before the tensor. A box of v
// valid rows at row r goes to coordinates {c, 64-v, r+v}.
func raggedMap(p driver.DevicePtr, width, rows int) driver.TensorMap {
	pitch := uint64(width) * bf16
	return driver.TensorMap{
		Elem: driver.BF16, Rank: 3, Address: p - driver.DevicePtr(warpgroupRows*pitch),
		Dims:    [5]uint64{uint64(width), warpgroupRows, uint64(rows) + 1},
		Strides: [4]uint64{pitch, pitch},
		Box:     [5]uint32{64, warpgroupRows, 1},
		Swizzle: driver.Swizzle128,
	}
}
