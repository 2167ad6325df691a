package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/moe/spec"
)

// Choice is the tile points of a layer's products.
type Choice struct {
	Up, Down Point
}

// space lists the points with these tile widths, each with as many stages as
// fit the target's shared memory.
func space(t driver.Target, widths ...int) []Point {
	const deepest, shallowest = 8, 3
	var points []Point
	for _, n := range widths {
		for _, panel := range []int{16, 8} {
			p := Point{TileN: n, Stages: deepest, Panel: panel}
			for p.sharedBytes() > t.SharedBytesPerCTA {
				p.Stages--
			}
			if p.Stages >= shallowest {
				points = append(points, p)
			}
		}
	}
	return points
}

// UpSpace are the points of the up-projection. Half of a tile's columns are
// gate, half up, stored 64 at a time.
func UpSpace(t driver.Target) []Point { return space(t, 256, 128) }

// DownSpace are the points of the down-projection.
func DownSpace(t driver.Target) []Point { return space(t, 256, 192, 128) }

// Choose picks points by the cost model.
func Choose(c spec.Config, t driver.Target) Choice {
	return Choice{
		Up:   cheapest(UpSpace(t), c, 2*c.Intermediate, c.Hidden, t),
		Down: cheapest(DownSpace(t), c, c.Hidden, c.Intermediate, t),
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
