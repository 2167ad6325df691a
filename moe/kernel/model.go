package kernel

import (
	"time"

	"sonicmoe/driver"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/spec"
)

// Model is a cost model of all products that have tile points, forward's and
// backward's: constants of one chip that estimate a product's time from its
// tile point and the layer's shape alone. The choice of a point depends on all
// but Hertz, which turns clocks into time. The command examples/bench -fit fits
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
	// lie across the sum. DWEpilogueClocks is its epilogue of 256 columns: the
	// warpgroups multiply side by side, so nothing hides it.
	DWKTileClocks, DWEpilogueClocks float64
	// L2BytesPerClock is what the L2 cache gives all SMs together, the bound of
	// a weight's gradient where its k-tiles are read faster than multiplied.
	L2BytesPerClock float64
	// Hertz is the SM clock under this load.
	Hertz float64
}

// H200Model is the model of the H200, fitted to measured points of all known rows.
// Its choices lose at most 2.5 % against the best of six or more of each product,
// measured in turns (examples/bench -points).
var H200Model = Model{
	KTileClocks: 1.12, LoadBytesPerClock: 115, TileClocks: 708, CoupleClocks: 1750,
	UpEpilogueClocks: 4760, DownEpilogueClocks: 3960, DHEpilogueClocks: 23700, DXEpilogueClocks: 6520,
	HiddenClocks:  857,
	BytesPerClock: 13100,
	DWKTileClocks: 6.89, DWEpilogueClocks: 2760, L2BytesPerClock: 5080,
	Hertz: 1.59e9,
}

// Choose picks the cheapest points.
func (m Model) Choose(c spec.Config, t driver.Target) Choice {
	pick := func(points []Point, cost func(Point, spec.Config, driver.Target) time.Duration) Point {
		return cheapest(points, func(p Point) time.Duration { return cost(p, c, t) })
	}
	return Choice{
		Up: pick(UpSpace(t), m.Up), Down: pick(DownSpace(t), m.Down),
		DH: pick(DHSpace(t), m.DH), DX: pick(DXSpace(t), m.DX),
		DW1: pick(DWSpace(t), m.DW1), DW2: pick(DWSpace(t), m.DW2),
	}
}

// cheapest is the first of the points with the least cost.
func cheapest(points []Point, cost func(Point) time.Duration) Point {
	best := points[0]
	for _, p := range points[1:] {
		if cost(p) < cost(best) {
			best = p
		}
	}
	return best
}

// Up estimates the up-projection's time at a point.
func (m Model) Up(p Point, c spec.Config, t driver.Target) time.Duration {
	return m.time(m.product(p, c, 2*c.Intermediate, c.Hidden, m.UpEpilogueClocks, t))
}

// Down estimates the down-projection's time at a point.
func (m Model) Down(p Point, c spec.Config, t driver.Target) time.Duration {
	return m.time(m.product(p, c, c.Hidden, c.Intermediate, m.DownEpilogueClocks, t))
}

// DH estimates the time of the product dA' with dH in its epilogue.
func (m Model) DH(p Point, c spec.Config, t driver.Target) time.Duration {
	return m.time(m.product(p, c, c.Intermediate, c.Hidden, m.DHEpilogueClocks, t))
}

// DX estimates the time of the product dX~.
func (m Model) DX(p Point, c spec.Config, t driver.Target) time.Duration {
	return m.time(m.product(p, c, c.Hidden, 2*c.Intermediate, m.DXEpilogueClocks, t))
}

// DW1 estimates the time of the gradient of W1.
func (m Model) DW1(p Point, c spec.Config, t driver.Target) time.Duration {
	return m.time(m.weight(p, c, DW{Intermediate: c.Intermediate, Of: W1}.width(), t))
}

// DW2 estimates the time of the gradient of W2.
func (m Model) DW2(p Point, c spec.Config, t driver.Target) time.Duration {
	return m.time(m.weight(p, c, DW{Intermediate: c.Intermediate, Of: W2}.width(), t))
}

// time is so many clocks.
func (m Model) time(clocks float64) time.Duration {
	return time.Duration(clocks / m.Hertz * float64(time.Second))
}

// defaultTokens stands for an unknown token count.
const defaultTokens = 16384

// evenLoad is the packed rows and the experts that have any, were they even.
func evenLoad(c spec.Config) (rows, used float64) {
	tokens := c.TokensHint
	if tokens <= 0 {
		tokens = defaultTokens
	}
	rows = float64(tokens) * float64(c.TopK)
	return rows, min(float64(c.Experts), rows)
}

// kTile is the clocks that a k-tile takes the tensor cores and the port of
// shared memory.
func (p Point) kTile() (mma, port float64) {
	mma = 2 * BlockRows * float64(p.TileN) * 64 / 4096
	fill, reads := float64(p.stageBytes()), float64(2*(64*128+p.TileN*128))
	return mma, (fill + reads) / 128
}

// product is the clocks of the busiest SM: its tiles, each with its k-tiles and
// what is visible of its epilogue and of the wave's reads.
func (m Model) product(p Point, c spec.Config, columns, depth int, epilogue float64, t driver.Target) float64 {
	rows, used := evenLoad(c)
	blocks := rows/BlockRows + used/2 // half a block of each expert is padding
	tileColumns := float64((columns + p.TileN - 1) / p.TileN)
	kTiles := float64(depth / 64)
	width := float64(p.TileN) / 256
	mma, port := p.kTile()
	hidden := m.HiddenClocks * min(float64(p.Stages), kTiles)
	loads := float64(tileABytes + p.TileN*tile.RowBytes/p.ctas())
	each := kTiles*(max(mma, port)+m.KTileClocks+loads/m.LoadBytesPerClock) + max(0, epilogue*width-hidden) +
		m.TileClocks + m.CoupleClocks*float64(p.ctas()-1)
	waves := max(1, blocks*tileColumns/float64(t.SMs))
	memory := distinctRows(p, blocks/used, tileColumns, float64(t.SMs)) * float64(depth) * bf16 / m.BytesPerClock
	return waves * (each + memory)
}

// weight is the clocks of the busiest SM for a weight's gradient [E, d, width]:
// its tiles, each with the k-tiles of an expert's rows.
func (m Model) weight(p Point, c spec.Config, width int, t driver.Target) float64 {
	rows, used := evenLoad(c)
	tiles := float64((c.Hidden + BlockRows - 1) / BlockRows * ((width + p.TileN - 1) / p.TileN))
	kTiles := rows/used/64 + 0.5 // half a step of each expert is padding
	mma, port := p.kTile()
	l2 := float64(p.stageBytes()) * float64(t.SMs) / m.L2BytesPerClock
	each := kTiles*(max(mma, port, l2)+m.DWKTileClocks) + m.DWEpilogueClocks*float64(p.TileN)/256 + m.TileClocks
	return max(1, used*tiles/float64(t.SMs)) * each
}

// distinctRows is how many different rows of weights and of tokens the tiles
// that run at once touch: what a wave must bring from memory.
func distinctRows(p Point, blocksOfExpert, tileColumns, tiles float64) float64 {
	blocks := max(float64(p.Panel), tiles/tileColumns)
	weights := tiles / blocks * max(1, blocks/blocksOfExpert)
	return weights*float64(p.TileN) + blocks*BlockRows
}
