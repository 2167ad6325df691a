package gemm

import (
	"fmt"

	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
)

// The shape of a CTA.
const (
	// TileM is the number of rows of a tile, WarpgroupM the number of rows of a math
	// warpgroup.
	TileM      = schedule.TileRows
	WarpgroupM = 64
	// MathThreads is the number of threads in both math warpgroups, MathWarps their
	// number of warps. Threads includes the load warpgroup. With one CTA on an SM,
	// each thread has 168 registers.
	MathThreads = 2 * pipeline.WarpgroupThreads
	Threads     = MathThreads + pipeline.WarpgroupThreads
	MathWarps   = MathThreads / 32
	// TileABytes is the size of A's tile, which comes first in a stage.
	TileABytes = TileM * tile.RowBytes
)

// Tiling is the shape of a product's tiles: a point of its search space. It is
// comparable. Results have the same bits with every tiling.
type Tiling struct {
	// TileN is the number of columns of a tile, which are rows of B.
	TileN int
	// Stages is the depth of the load ring.
	Stages int
	// GroupM is the number of row tiles that run together and share B in the L2 cache.
	GroupM int
	// ClusterM is the number of CTAs in a cluster, 1 or 2. With 2, each CTA multicasts
	// half of the B tile to both.
	ClusterM int
}

// String names the tiling, such as "128x256 s4 p16 c2": the tile's rows and columns,
// Stages, GroupM, ClusterM.
func (t Tiling) String() string {
	return fmt.Sprintf("%dx%d s%d p%d c%d", TileM, t.TileN, t.Stages, t.GroupM, t.ClusterM)
}

// Columns returns the number of tiles that cover width columns.
func (t Tiling) Columns(width int) int { return (width + t.TileN - 1) / t.TileN }

// SubTiles is the number of sub-tiles that a [Store] writes for a tile.
func (t Tiling) SubTiles() int { return t.TileN / SubTileColumns }

// TileBBytes is the size of B's tile.
func (t Tiling) TileBBytes() int { return t.TileN * tile.RowBytes }

// StageBytes is the size of a stage.
func (t Tiling) StageBytes() int { return TileABytes + t.TileBBytes() }

// barrierBytes bounds the mbarriers and the tile queue of a product.
const barrierBytes = 512

// SharedBytes is an upper bound of the shared memory of a product whose epilogue
// takes epilogueBytes. The bound exceeds what the product takes by less than 512
// bytes.
func (t Tiling) SharedBytes(epilogueBytes int) int {
	return t.Stages*t.StageBytes() + epilogueBytes + barrierBytes
}

// CheckAtoms returns an error if an MN-major B tile is not whole atoms of 64 columns
// in each CTA of the cluster. name is the kernel's.
func (t Tiling) CheckAtoms(name string) error {
	if t.TileN%(tile.Block*t.ClusterM) != 0 {
		return fmt.Errorf("%s: tiling %v: TileN must be a multiple of %d for each CTA of the cluster", name, t, tile.Block)
	}
	return nil
}
