package tiles

import (
	"time"

	"sonicmoe/driver"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/tile"
)

// Model is a cost model of all products with tilings, forward and backward. It estimates a
// product's time from the tiling and the layer's shape, with constants of one chip that the
// command examples/bench -fit fits to measured points. Hertz converts clocks to time and does
// not affect the choice of a tiling.
//
// A k-tile takes the larger of its tensor-core clocks (2·M·N·64/4096) and its shared-memory
// clocks (operand reads and fills, 128 bytes per clock). These follow from the chip and are not
// fitted. All constants are in clocks of one SM.
type Model struct {
	// KTileClocks is the extra cost of each k-tile of 64 of a grouped product, for barriers
	// and issue. Every product but the gradients of weights is a grouped product.
	KTileClocks float64
	// LoadBytesPerClock is the rate at which a k-tile's loads from the L2 cache cost extra
	// clocks, since they take power. The CTAs of a cluster share the loads of weights.
	LoadBytesPerClock float64
	// TileClocks is the extra cost of each tile, for its ticket and first loads. CoupleClocks
	// is added in a cluster, whose CTAs wait for each other.
	TileClocks, CoupleClocks float64
	// UpEpilogueClocks and the next three are the time of one warpgroup's epilogue of 256
	// columns. The other warpgroup's products hide HiddenClocks of it per stage of the ring.
	UpEpilogueClocks, DownEpilogueClocks, DHEpilogueClocks, DXEpilogueClocks float64
	HiddenClocks                                                             float64
	// BytesPerClock is the rate of one SM for reads from device memory that the products of a
	// wave do not hide.
	BytesPerClock float64
	// DWKTileClocks is KTileClocks for the gradient of a weight, whose operands are both
	// MN-major. DWEpilogueClocks is the part of its epilogue of 256 columns that is not
	// hidden: one number for all depths of the ring.
	DWKTileClocks, DWEpilogueClocks float64
	// L2BytesPerClock is the bandwidth of the L2 cache for all SMs together. It bounds the
	// gradient of a weight if its k-tiles are multiplied faster than they are read.
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

// Load is the number of rows of a product. They are spread evenly over the experts.
type Load struct {
	// Rows is the number of rows, Experts the number of experts that have any.
	Rows, Experts float64
}

// DefaultTokens replaces an unknown number of tokens.
const DefaultTokens = 16384

// EvenLoad returns the load of that number of tokens (0: DefaultTokens), each with topK experts.
func EvenLoad(tokens, topK, experts int) Load {
	if tokens <= 0 {
		tokens = DefaultTokens
	}
	rows := float64(tokens) * float64(topK)
	return Load{rows, min(float64(experts), rows)}
}

// kTile returns the clocks of a k-tile in the tensor cores and at the port of shared memory.
func kTile(p gemm.Tiling) (mma, port float64) {
	mma = 2 * gemm.TileM * float64(p.TileN) * tile.K / 4096
	fill, reads := float64(p.StageBytes()), float64(2*(gemm.WarpgroupM*tile.RowBytes+p.TileBBytes()))
	return mma, (fill + reads) / 128
}

// Grouped returns the clocks of the busiest SM for a grouped product of the given number of
// columns, with sums over depth elements. A tile costs its k-tiles and the parts of its epilogue
// and of the wave's reads that are not hidden.
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

// distinctRows returns the number of different rows of weights and of tokens that a wave of tiles
// reads from memory.
func distinctRows(p gemm.Tiling, rowTilesOfExpert, tileColumns, tiles float64) float64 {
	rowTiles := max(float64(p.GroupM), tiles/tileColumns)
	weights := tiles / rowTiles * max(1, rowTiles/rowTilesOfExpert)
	return weights*float64(p.TileN) + rowTiles*gemm.TileM
}

// Cheapest returns the first of the tilings with the lowest cost.
func Cheapest(list []gemm.Tiling, cost func(gemm.Tiling) float64) gemm.Tiling {
	best := list[0]
	for _, p := range list[1:] {
		if cost(p) < cost(best) {
			best = p
		}
	}
	return best
}
