package gemm

import (
	"fmt"

	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
)

// The shape of a CTA.
const (
	// TileM is the rows of a tile, WarpgroupM those of a math warpgroup.
	TileM      = schedule.TileRows
	WarpgroupM = 64
	// MathThreads are two warpgroups of MathWarps, Threads those and the load warpgroup:
	// with one CTA an SM they have 168 registers each.
	MathThreads = 2 * pipeline.WarpgroupThreads
	Threads     = MathThreads + pipeline.WarpgroupThreads
	MathWarps   = MathThreads / 32
	// TileABytes is A's part of a stage, which comes first.
	TileABytes = TileM * tile.RowBytes
)

// Tiling is the shape of a product's tiles: a point of its search space.
// Comparable; results are the same bits for every tiling.
type Tiling struct {
	// TileN is the columns of a tile: rows of B.
	TileN int
	// Stages is the depth of the load ring.
	Stages int
	// GroupM is the row tiles that run together and share B in the L2 cache.
	GroupM int
	// ClusterM is the CTAs per cluster, 1 or 2. With 2, each CTA multicasts half
	// of the B tile to both.
	ClusterM int
}

// String names the tiling, such as "128x256 s4 p16 c2": the tile, the stages,
// the row tiles of a group, the CTAs of a cluster.
func (t Tiling) String() string {
	return fmt.Sprintf("%dx%d s%d p%d c%d", TileM, t.TileN, t.Stages, t.GroupM, t.ClusterM)
}

// TileBBytes is B's part of a stage.
func (t Tiling) TileBBytes() int { return t.TileN * tile.RowBytes }

// StageBytes is the size of a stage.
func (t Tiling) StageBytes() int { return TileABytes + t.TileBBytes() }

// barrierBytes bounds the mbarriers and the tile queue of a product.
const barrierBytes = 512

// SharedBytes is the shared memory of a product whose epilogue takes
// epilogueBytes: an upper bound, of which fewer than 512 may be left.
func (t Tiling) SharedBytes(epilogueBytes int) int {
	return t.Stages*t.StageBytes() + epilogueBytes + barrierBytes
}

// CheckAtoms refuses a tiling whose MN-major B tile would not be whole boxes of
// atoms; name is the kernel's.
func (t Tiling) CheckAtoms(name string) error {
	if t.TileN%(tile.Block*t.ClusterM) != 0 {
		return fmt.Errorf("%s: tiling %v: TileN must be a multiple of %d for each CTA of the cluster", name, t, tile.Block)
	}
	return nil
}
