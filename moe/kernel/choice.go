package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/moe/spec"
)

// Choice is the tile points of a layer's products.
type Choice struct {
	Up, Down Point
}

// Space lists the points that a product with so many weight columns (up: 2n,
// down: d) can be built for on the target, with as many stages as fit.
func Space(columns int, t driver.Target) []Point {
	var points []Point
	for _, n := range []int{256, 192, 128, 64} {
		if n/2%64 != 0 && n != 192 {
			// Up stores whole groups of 64 gate and 64 up columns.
			continue
		}
		for _, panel := range []int{8, 16} {
			p := Point{TileN: n, Stages: 8, Panel: panel}
			for p.sharedBytes() > t.SharedBytesPerCTA {
				p.Stages--
			}
			if p.Stages >= 3 {
				points = append(points, p)
			}
		}
	}
	return points
}

// UpSpace and DownSpace are the points of each product.
func UpSpace(c spec.Config, t driver.Target) []Point {
	var out []Point
	for _, p := range Space(2*c.Intermediate, t) {
		if p.TileN%128 == 0 {
			out = append(out, p)
		}
	}
	return out
}

// DownSpace are the points of the down-projection.
func DownSpace(c spec.Config, t driver.Target) []Point { return Space(c.Hidden, t) }

// Choose picks points by the cost model.
func Choose(c spec.Config, t driver.Target) Choice {
	return Choice{
		Up:   cheapest(UpSpace(c, t), c, 2*c.Intermediate, c.Hidden, t),
		Down: cheapest(DownSpace(c, t), c, c.Hidden, c.Intermediate, t),
	}
}

func cheapest(points []Point, c spec.Config, columns, depth int, t driver.Target) Point {
	best, bestCost := points[0], cost(points[0], c, columns, depth, t)
	for _, p := range points[1:] {
		if x := cost(p, c, columns, depth, t); x < bestCost {
			best, bestCost = p, x
		}
	}
	return best
}

// defaultTokens stands for an unknown token count.
const defaultTokens = 16384

// cost estimates a product's clocks on the busiest SM. A k-tile takes the
// larger of its tensor-core time (2·M·N·64/4096) and its shared-memory time
// (operand reads and fills at 128 bytes a clock); a tile adds a constant and
// the part of its epilogue that the other warpgroup's products don't hide.
func cost(p Point, c spec.Config, columns, depth int, t driver.Target) float64 {
	tokens := c.TokensHint
	if tokens <= 0 {
		tokens = defaultTokens
	}
	rows := float64(tokens) * float64(c.TopK)
	blocks := rows/BlockRows + float64(min(c.Experts, int(rows)))/2 // half a block of each expert is padding
	tileColumns := (columns + p.TileN - 1) / p.TileN
	tiles := blocks * float64(tileColumns)
	kTiles := float64(depth / 64)
	mma := 2 * BlockRows * float64(p.TileN) * 64 / 4096
	fill := float64(p.stageBytes())
	reads := float64(2 * (64*128 + p.TileN*128))
	port := (fill + reads) / 128
	epilogue := 1500 * float64(p.TileN) / 256
	hidden := 512 * min(float64(p.Stages), kTiles) * float64(p.TileN) / 256
	tile := kTiles*(max(mma, port)+40) + max(0, epilogue-hidden) + 150
	waves := max(1, tiles/float64(t.SMs))
	panelMiss := 1 + 0.002*float64(16/p.Panel) // a small preference for larger panels
	return waves * tile * panelMiss
}
