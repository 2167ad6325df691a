package gemm

import (
	"fmt"

	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
)

// The shape of a CTA.
const (
	// TileM is the number of rows of a tile. WarpgroupM is the number of rows that one math
	// warpgroup computes.
	TileM      = schedule.TileRows
	WarpgroupM = 64
	// MathThreads and MathWarps are the numbers of threads and warps of both math warpgroups.
	// Threads also includes the load warpgroup. With one CTA on an SM, each thread has 168
	// registers.
	MathThreads = 2 * pipeline.WarpgroupThreads
	Threads     = MathThreads + pipeline.WarpgroupThreads
	MathWarps   = MathThreads / 32
	// TileABytes is the size of A's tile, which is the first part of a stage.
	TileABytes = TileM * tile.RowBytes
)

// Tiling is the shape of a product's tiles. The tuner chooses it from a search space. It is
// comparable. Results have the same bits with every tiling.
type Tiling struct {
	// TileN is the number of columns of a tile of C, and so the number of rows of B's tile.
	TileN int
	// Stages is the number of stages of the load ring.
	Stages int
	// GroupM is the number of row tiles that run at the same time and share tiles of B in the L2
	// cache.
	GroupM int
	// ClusterM is the number of CTAs in a cluster, 1 or 2. With 2, each CTA loads half of the B
	// tile and multicasts it to both.
	ClusterM int
}

// String names the tiling, such as "128x256 s4 p16 c2": the tile's rows and columns, then Stages,
// GroupM and ClusterM.
func (t Tiling) String() string {
	return fmt.Sprintf("%dx%d s%d p%d c%d", TileM, t.TileN, t.Stages, t.GroupM, t.ClusterM)
}

// Columns returns the number of tiles that cover the given width.
func (t Tiling) Columns(width int) int { return (width + t.TileN - 1) / t.TileN }

// SubTiles returns the number of sub-tiles that a [Store] writes for a warpgroup's part of a tile.
func (t Tiling) SubTiles() int { return t.TileN / SubTileColumns }

// TileBBytes returns the size of B's tile.
func (t Tiling) TileBBytes() int { return t.TileN * tile.RowBytes }

// StageBytes returns the size of a stage.
func (t Tiling) StageBytes() int { return TileABytes + t.TileBBytes() }

// barrierBytes is an upper bound of the size of a product's mbarriers and tile queue.
const barrierBytes = 512

// SharedBytes returns an upper bound of the shared memory of a product whose epilogue takes
// epilogueBytes. The bound is less than 512 bytes above the size that the product takes.
func (t Tiling) SharedBytes(epilogueBytes int) int {
	return t.Stages*t.StageBytes() + epilogueBytes + barrierBytes
}

// CheckAtoms returns an error if each CTA's part of an MN-major B tile is not a multiple of 64
// columns, the width of an atom. name is the name of the kernel.
func (t Tiling) CheckAtoms(name string) error {
	if t.TileN%(tile.Block*t.ClusterM) != 0 {
		return fmt.Errorf("%s: tiling %v: TileN must be a multiple of %d for each CTA of the cluster", name, t, tile.Block)
	}
	return nil
}
