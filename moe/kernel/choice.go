package kernel

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sonicmoe/driver"
	"sonicmoe/moe/spec"
)

// Choice is the tile points of a layer's products: of forward, then of
// backward. A zero Point leaves the choice to the cost model.
type Choice struct {
	Up, Down         Point
	DH, DX, DW1, DW2 Point
}

// Check returns nil, or an [*spec.ArgError] that names the first field of a
// point that no kernel can have on the target.
func (c Choice) Check(t driver.Target) error {
	for _, p := range Products() {
		point := *p.At(&c)
		if point == (Point{}) {
			continue
		}
		if err := point.check(p.field, p.Space(t)); err != nil {
			return err
		}
	}
	return nil
}

// OrElse is c with the points of other where its own are zero.
func (c Choice) OrElse(other Choice) Choice {
	for _, p := range Products() {
		if own := p.At(&c); *own == (Point{}) {
			*own = *p.At(&other)
		}
	}
	return c
}

// check holds p against the points of its space: it may have fewer stages and
// another panel.
func (p Point) check(field string, points []Point) error {
	bad := func(part string, got int, want string) error {
		return &spec.ArgError{Field: field + part, Got: strconv.Itoa(got), Want: want}
	}
	most := 1 // CTAs of a cluster
	for _, q := range points {
		if q.TileN == p.TileN {
			most = max(most, q.ctas())
		}
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
		if p.CTAs < 0 || p.CTAs > most {
			want := "1 (or 0), or 2 for clusters of two"
			if most == 1 {
				want = fmt.Sprintf("1 (or 0) for %d columns", p.TileN)
			}
			return bad(".CTAs", p.CTAs, want)
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

// defaultPanel is the panel of what the cost model chooses among: wider ones
// gain 1 % here and lose 20 % there, which a tuner finds out.
const defaultPanel = 8

// space lists the points with these tile widths, each with as many stages as
// fit the target's shared memory.
func space(t driver.Target, widths ...int) []Point { return spaceOf(t, Point.sharedBytes, widths...) }

// spaceOf is space for a product that takes so much shared memory.
func spaceOf(t driver.Target, sharedBytes func(Point) int, widths ...int) []Point {
	var points []Point
	for _, n := range widths {
		p := Point{TileN: n, Stages: deepest, Panel: defaultPanel}
		for sharedBytes(p) > t.SharedBytesPerCTA {
			p.Stages--
		}
		if p.Stages >= shallowest {
			points = append(points, p)
		}
	}
	return points
}

// UpSpace are the points of the up-projection. Half of a tile's columns are
// gate, half up, stored 64 at a time. Clusters cost nothing here, and where the
// weights of the experts at work don't fit the L2 cache they gain 16 %.
func UpSpace(t driver.Target) []Point { return inClusters(space(t, 256, 128)) }

// DownSpace are the points of the down-projection, whose sums are short: waiting for
// each other costs clusters more than they save. 192 columns lose 2 to 15 %.
func DownSpace(t driver.Target) []Point { return clustered(space(t, 256, 128)) }

// inClusters makes points those of clusters of two CTAs.
func inClusters(points []Point) []Point {
	for i := range points {
		points[i].CTAs = 2
	}
	return points
}

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

// Choose picks points by the cost model of the H200.
func Choose(c spec.Config, t driver.Target) Choice { return H200Model.Choose(c, t) }
