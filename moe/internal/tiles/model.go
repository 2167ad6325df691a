package tiles

import (
	"time"

	"sonicmoe/driver"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/tile"
)

// Model is a cost model of all products that have tilings, forward's and
// backward's: constants of one chip that estimate a product's time from its
// tiling and the layer's shape alone. The choice of a tiling depends on all but
// Hertz, which turns clocks into time. The command examples/bench -fit fits
// them to measured points.
//
// A k-tile takes the larger of its tensor-core clocks (2·M·N·64/4096) and its
// shared-memory clocks (operand reads and fills at 128 bytes a clock), which
// are the chip's and not fitted. All constants are clocks of one SM.
type Model struct {
	// KTileClocks is what every k-tile of 64 of a grouped product (all but the
	// weights' gradients) costs on top: barriers, issue.
	KTileClocks float64
	// LoadBytesPerClock is the rate of that part of a k-tile's loads from the
	// L2 cache that the products don't hide: they cost power, and so clocks. The
	// CTAs of a cluster share the weights'.
	LoadBytesPerClock float64
	// TileClocks is what every tile costs on top: its ticket, its first loads.
	// CoupleClocks comes to it in a cluster, whose CTAs wait for each other.
	TileClocks, CoupleClocks float64
	// UpEpilogueClocks and its like are one warpgroup's epilogue of 256 columns.
	// The other warpgroup's products hide it as far as the ring is deep:
	// HiddenClocks for each stage.
	UpEpilogueClocks, DownEpilogueClocks, DHEpilogueClocks, DXEpilogueClocks float64
	HiddenClocks                                                             float64
	// BytesPerClock is the rate, for the SM, of that part of a wave's reads
	// from device memory that the products don't hide.
	BytesPerClock float64
	// DWKTileClocks is KTileClocks of a weight's gradient, whose operands both
	// lie across the sum. DWEpilogueClocks is what shows of its epilogue
	// of 256 columns: the warpgroups are staggered as those of a grouped product,
	// and the fit has one number for all depths of the ring.
	DWKTileClocks, DWEpilogueClocks float64
	// L2BytesPerClock is what the L2 cache gives all SMs together, the bound of
	// a weight's gradient where its k-tiles are read faster than multiplied.
	L2BytesPerClock float64
	// Hertz is the SM clock under this load.
	Hertz float64
}

// H200 is the model of the H200, fitted to measured points of all known rows.
// Its choices lose at most 2.5 % against the best of six or more of each product,
// measured in turns (examples/bench -points).
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

// Load is how many rows a product has, evenly by expert.
type Load struct {
	// Rows are the packed rows, Experts those that have any.
	Rows, Experts float64
}

// DefaultTokens stands for an unknown number of tokens.
const DefaultTokens = 16384

// EvenLoad is the load of a layer whose tokens (0 stands for DefaultTokens) take
// topK experts each, spread evenly.
func EvenLoad(tokens, topK, experts int) Load {
	if tokens <= 0 {
		tokens = DefaultTokens
	}
	rows := float64(tokens) * float64(topK)
	return Load{rows, min(float64(experts), rows)}
}

// kTile is the clocks that a k-tile takes the tensor cores and the port of
// shared memory.
func kTile(p gemm.Tiling) (mma, port float64) {
	mma = 2 * gemm.TileM * float64(p.TileN) * tile.K / 4096
	fill, reads := float64(p.StageBytes()), float64(2*(gemm.WarpgroupM*tile.RowBytes+p.TileBBytes()))
	return mma, (fill + reads) / 128
}

// Grouped is the clocks of the busiest SM for a grouped product, columns wide and
// with sums of depth elements: its tiles, each with its k-tiles and what is visible
// of its epilogue and of the wave's reads.
func (m Model) Grouped(p gemm.Tiling, load Load, columns, depth int, epilogue float64, t driver.Target) float64 {
	rowTiles := load.Rows/gemm.TileM + load.Experts/2 // half a tile of each expert is padding
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

// Weight is the clocks of the busiest SM for a weight's gradient [E, height,
// width]: its tiles, each with the k-tiles of an expert's rows.
func (m Model) Weight(p gemm.Tiling, load Load, height, width int, t driver.Target) float64 {
	tiles := float64((height + gemm.TileM - 1) / gemm.TileM * ((width + p.TileN - 1) / p.TileN))
	kTiles := load.Rows/load.Experts/tile.K + 0.5 // half a step of each expert is padding
	mma, port := kTile(p)
	l2 := float64(p.StageBytes()) * float64(t.SMs) / m.L2BytesPerClock
	each := kTiles*(max(mma, port, l2)+m.DWKTileClocks) + m.DWEpilogueClocks*float64(p.TileN)/256 + m.TileClocks
	return max(1, load.Experts*tiles/float64(t.SMs)) * each
}

// distinctRows is how many different rows of weights and of tokens the tiles
// that run at once touch: what a wave must bring from memory.
func distinctRows(p gemm.Tiling, rowTilesOfExpert, tileColumns, tiles float64) float64 {
	rowTiles := max(float64(p.GroupM), tiles/tileColumns)
	weights := tiles / rowTiles * max(1, rowTiles/rowTilesOfExpert)
	return weights*float64(p.TileN) + rowTiles*gemm.TileM
}

// Cheapest is the first of the tilings with the least cost.
func Cheapest(list []gemm.Tiling, cost func(gemm.Tiling) float64) gemm.Tiling {
	best := list[0]
	for _, p := range list[1:] {
		if cost(p) < cost(best) {
			best = p
		}
	}
	return best
}
