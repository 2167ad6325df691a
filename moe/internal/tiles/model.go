package tiles

import (
	"time"

	"sonicmoe/driver"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/tile"
)

// Model is a cost model of all products with tilings, forward and backward. It estimates a
// product's time from the tiling and the layer's shape. Its constants are for one chip. The command
// examples/bench -fit fits them to measured times. All constants are in clocks of one SM, except
// Hertz, which converts clocks to time and does not affect the choice of a tiling.
//
// A k-tile takes the larger of two numbers of clocks, which follow from the chip and are not
// fitted: 2·M·N·64/4096 in the tensor cores, and the bytes written to and read from shared memory,
// at 128 bytes a clock.
type Model struct {
	// KTileClocks is the extra cost of each k-tile of 64 of a grouped product, for barriers and
	// issue. All products are grouped products, except the gradients of weights.
	KTileClocks float64
	// LoadBytesPerClock gives the extra cost of a k-tile's loads from the L2 cache: the loaded
	// bytes divided by LoadBytesPerClock. The loads cost clocks because they take power. The CTAs
	// of a cluster share the loads of weights.
	LoadBytesPerClock float64
	// TileClocks is the extra cost of each tile, for its ticket and first loads. CoupleClocks
	// is added in a cluster, whose CTAs wait for each other.
	TileClocks, CoupleClocks float64
	// UpEpilogueClocks, DownEpilogueClocks, DHEpilogueClocks and DXEpilogueClocks are the time of
	// one warpgroup's epilogue for 256 columns. The other warpgroup's multiplications hide a part
	// of this time: HiddenClocks for each stage of the ring.
	UpEpilogueClocks, DownEpilogueClocks, DHEpilogueClocks, DXEpilogueClocks float64
	HiddenClocks                                                             float64
	// BytesPerClock is one SM's bandwidth for reads from device memory. The model uses it for the
	// reads that the multiplications of a wave do not hide.
	BytesPerClock float64
	// DWKTileClocks is KTileClocks for the gradient of a weight, whose operands are both MN-major.
	// DWEpilogueClocks is the part of this gradient's epilogue for 256 columns that is not hidden.
	// It does not depend on the number of stages.
	DWKTileClocks, DWEpilogueClocks float64
	// L2BytesPerClock is the bandwidth of the L2 cache for all SMs together. It limits the gradient
	// of a weight if reading its k-tiles takes longer than multiplying them.
	L2BytesPerClock float64
	// Hertz is the SM clock under this load.
	Hertz float64
}

// H200 is the model of the H200, fitted to points measured with examples/bench -points.
var H200 = Model{
	KTileClocks: 1.12, LoadBytesPerClock: 115, TileClocks: 708, CoupleClocks: 1750,
	UpEpilogueClocks: 4760, DownEpilogueClocks: 3960, DHEpilogueClocks: 23700, DXEpilogueClocks: 6520,
	HiddenClocks:  857,
	BytesPerClock: 13100,
	DWKTileClocks: 6.89, DWEpilogueClocks: 2760, L2BytesPerClock: 5080,
	Hertz: 1.59e9,
}

// Time converts clocks of one SM to time at m.Hertz.
func (m Model) Time(clocks float64) time.Duration {
	return time.Duration(clocks / m.Hertz * float64(time.Second))
}

// Load is the number of rows of a product. The rows are spread evenly over the experts.
type Load struct {
	// Rows is the number of rows. Experts is the number of experts that have rows.
	Rows, Experts float64
}

// DefaultTokens is the number of tokens to assume if the Config has no TokensHint.
const DefaultTokens = 16384

// EvenLoad returns the load of a number of tokens, each with topK experts. 0 tokens mean
// DefaultTokens.
func EvenLoad(tokens, topK, experts int) Load {
	if tokens <= 0 {
		tokens = DefaultTokens
	}
	rows := float64(tokens) * float64(topK)
	return Load{rows, min(float64(experts), rows)}
}

// kTile returns the clocks of a k-tile in the tensor cores (mma) and at the port of shared memory
// (port).
func kTile(p gemm.Tiling) (mma, port float64) {
	mma = 2 * gemm.TileM * float64(p.TileN) * tile.K / 4096
	fill, reads := float64(p.StageBytes()), float64(2*(gemm.WarpgroupM*tile.RowBytes+p.TileBBytes()))
	return mma, (fill + reads) / 128
}

// Grouped returns the clocks of the busiest SM for a grouped product with the given number of
// columns and sums over depth elements. A tile costs its k-tiles, the part of its epilogue that is
// not hidden, and the part of the wave's reads that is not hidden.
func (m Model) Grouped(p gemm.Tiling, load Load, columns, depth int, epilogue float64, t driver.Target) float64 {
	rowTiles := load.Rows/gemm.TileM + load.Experts/2 // on average half a tile per expert is padding
	tileColumns := float64((columns + p.TileN - 1) / p.TileN)
	kTiles := float64(tile.Tiles(depth))
	mma, port := kTile(p)
	hidden := m.HiddenClocks * min(float64(p.Stages), kTiles)
	loads := float64(gemm.TileABytes + p.TileBBytes()/p.ClusterM)
	each := kTiles*(max(mma, port)+m.KTileClocks+loads/m.LoadBytesPerClock) + max(0, epilogue*float64(p.TileN)/256-hidden) +
		m.TileClocks + m.CoupleClocks*float64(p.ClusterM-1)
	waves := max(1, rowTiles*tileColumns/float64(t.SMs))
	memory := distinctRows(p, rowTiles/load.Experts, tileColumns, float64(t.SMs)) * float64(depth) * 2 / m.BytesPerClock
	return waves * (each + memory)
}

// Weight returns the clocks of the busiest SM for the gradient [E, height, width] of a weight. A
// tile costs the k-tiles of one expert's rows.
func (m Model) Weight(p gemm.Tiling, load Load, height, width int, t driver.Target) float64 {
	tiles := float64((height + gemm.TileM - 1) / gemm.TileM * ((width + p.TileN - 1) / p.TileN))
	kTiles := load.Rows/load.Experts/tile.K + 0.5 // on average half a k-tile per expert is padding
	mma, port := kTile(p)
	l2 := float64(p.StageBytes()) * float64(t.SMs) / m.L2BytesPerClock
	each := kTiles*(max(mma, port, l2)+m.DWKTileClocks) + m.DWEpilogueClocks*float64(p.TileN)/256 + m.TileClocks
	return max(1, load.Experts*tiles/float64(t.SMs)) * each
}

// distinctRows returns how many different rows of weights and of tokens a wave of tiles reads from
// memory.
func distinctRows(p gemm.Tiling, rowTilesOfExpert, tileColumns, tiles float64) float64 {
	rowTiles := max(float64(p.GroupM), tiles/tileColumns)
	weights := tiles / rowTiles * max(1, rowTiles/rowTilesOfExpert)
	return weights*float64(p.TileN) + rowTiles*gemm.TileM
}

// Cheapest returns the tiling with the lowest cost, or the first of several.
func Cheapest(list []gemm.Tiling, cost func(gemm.Tiling) float64) gemm.Tiling {
	best := list[0]
	for _, p := range list[1:] {
		if cost(p) < cost(best) {
			best = p
		}
	}
	return best
}
