package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/moe/spec"
)

// DWSpace are the points of the weight gradients. Their tiles have no panels.
func DWSpace(t driver.Target) []Point {
	var points []Point
	for _, p := range space(t, 256, 192, 128) {
		p.Panel = 1
		if len(points) == 0 || points[len(points)-1] != p {
			points = append(points, p)
		}
	}
	return points
}

// ChooseDW picks the point of a weight gradient by the cost model.
func ChooseDW(c spec.Config, of Weight, t driver.Target) Point {
	width := DW{Intermediate: c.Intermediate, Of: of}.width()
	points := DWSpace(t)
	best, bestCost := points[0], dwCost(points[0], c, width, t)
	for _, p := range points[1:] {
		if x := dwCost(p, c, width, t); x < bestCost {
			best, bestCost = p, x
		}
	}
	return best
}

// dwCost estimates the clocks of a weight gradient [E, d, width], as cost
// does: the k-tiles of every expert's every tile, the larger of tensor-core
// and shared-memory time each, on so many SMs, and the reads of a wave.
func dwCost(p Point, c spec.Config, width int, t driver.Target) float64 {
	tokens := c.TokensHint
	if tokens <= 0 {
		tokens = defaultTokens
	}
	rows := float64(tokens) * float64(c.TopK)
	used := min(float64(c.Experts), rows)
	tilesM := (c.Hidden + BlockRows - 1) / BlockRows
	tilesN := (width + p.TileN - 1) / p.TileN
	kTiles := rows/used/64 + 0.5 // half a step of each expert is padding
	mma := 2 * BlockRows * float64(p.TileN) * 64 / 4096
	port := (float64(p.stageBytes()) + float64(2*(64*128+p.TileN*128))) / 128
	// What the SMs read from the L2 cache has its own limit, in bytes a clock
	// of the chip.
	const l2 = 5500
	reads := float64(p.stageBytes()) * float64(t.SMs) / l2
	const issue, epilogue = 45, 400
	tile := kTiles*(max(mma, port, reads)+issue) + epilogue*float64(p.TileN)/256 + 150
	return max(1, used*float64(tilesM*tilesN)/float64(t.SMs)) * tile
}
