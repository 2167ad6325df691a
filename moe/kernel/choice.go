package kernel

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sonicmoe/driver"
	"sonicmoe/moe/spec"
)

// Choice is the tile points of a layer's products.
type Choice struct {
	Up, Down Point
}

// Check returns nil, or an [*spec.ArgError] that names the first field of a
// point that no kernel can have on the target.
func (c Choice) Check(t driver.Target) error {
	if err := c.Up.check("Choice.Up", UpSpace(t)); err != nil {
		return err
	}
	return c.Down.check("Choice.Down", DownSpace(t))
}

// check holds p against the points of its space: it may have fewer stages and
// another panel.
func (p Point) check(field string, points []Point) error {
	bad := func(part string, got int, want string) error {
		return &spec.ArgError{Field: field + part, Got: strconv.Itoa(got), Want: want}
	}
	var widths []string
	for _, q := range points {
		if q.TileN != p.TileN {
			widths = append(widths, strconv.Itoa(q.TileN))
			continue
		}
		if p.Stages < shallowest || p.Stages > q.Stages {
			return bad(".Stages", p.Stages, fmt.Sprintf("%d to %d for %d columns", shallowest, q.Stages, q.TileN))
		}
		if p.Panel < 1 || p.Panel > widestPanel {
			return bad(".Panel", p.Panel, fmt.Sprintf("1 to %d", widestPanel))
		}
		if p.CTAs < 0 || p.CTAs > 2 {
			return bad(".CTAs", p.CTAs, "1 (or 0), or 2 for clusters of two")
		}
		return nil
	}
	return bad(".TileN", p.TileN, "one of "+strings.Join(slices.Compact(widths), ", "))
}

// Bounds of stages and panels.
const (
	deepest, shallowest = 8, 3
	widestPanel         = 1024
)

// space lists the points with these tile widths, each with as many stages as
// fit the target's shared memory.
func space(t driver.Target, widths ...int) []Point { return spaceOf(t, Point.sharedBytes, widths...) }

// spaceOf is space for a product that takes so much shared memory.
func spaceOf(t driver.Target, sharedBytes func(Point) int, widths ...int) []Point {
	var points []Point
	for _, n := range widths {
		for _, panel := range []int{8, 16} {
			p := Point{TileN: n, Stages: deepest, Panel: panel}
			for sharedBytes(p) > t.SharedBytesPerCTA {
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
func UpSpace(t driver.Target) []Point { return clustered(space(t, 256, 128)) }

// DownSpace are the points of the down-projection.
func DownSpace(t driver.Target) []Point { return clustered(space(t, 256, 192, 128)) }

// clustered adds to each point the one of clusters of two CTAs.
func clustered(points []Point) []Point {
	var all []Point
	for _, p := range points {
		for ctas := range 2 {
			p.CTAs = ctas + 1
			all = append(all, p)
		}
	}
	return all
}

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
// the part of its epilogue that the other warpgroup's products don't hide; of
// the time of reading from memory, a part stays visible.
func cost(p Point, c spec.Config, columns, depth int, t driver.Target) float64 {
	tokens := c.TokensHint
	if tokens <= 0 {
		tokens = defaultTokens
	}
	rows := float64(tokens) * float64(c.TopK)
	used := min(float64(c.Experts), rows)
	blocks := rows/BlockRows + used/2 // half a block of each expert is padding
	tileColumns := float64((columns + p.TileN - 1) / p.TileN)
	kTiles := float64(depth / 64)
	mma := 2 * BlockRows * float64(p.TileN) * 64 / 4096
	fill := float64(p.stageBytes())
	reads := float64(2 * (64*128 + p.TileN*128))
	port := (fill + reads) / 128
	epilogue := 1500 * float64(p.TileN) / 256
	hidden := 512 * min(float64(p.Stages), kTiles) * float64(p.TileN) / 256
	tile := kTiles*(max(mma, port)+40) + max(0, epilogue-hidden) + 150
	waves := max(1, blocks*tileColumns/float64(t.SMs))
	const bytesAClock, visible = 2800, 0.15 // an H200's 4.2 TB/s at 1.5 GHz
	memory := distinctRows(p, blocks/used, tileColumns, float64(t.SMs)) * float64(depth) * bf16 / bytesAClock
	return waves * (tile + visible*memory)
}

// distinctRows is how many different rows of weights and of tokens the tiles
// that run at once touch: what a wave must bring from memory.
func distinctRows(p Point, blocksOfExpert, tileColumns, tiles float64) float64 {
	blocks := max(float64(p.Panel), tiles/tileColumns)
	weights := tiles / blocks * max(1, blocks/blocksOfExpert)
	return weights*float64(p.TileN) + blocks*BlockRows
}
