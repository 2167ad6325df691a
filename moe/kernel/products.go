package kernel

import (
	"fmt"
	"slices"
	"time"

	"sonicmoe/driver"
	"sonicmoe/moe/spec"
)

// Product is one of a layer's grouped products: the kernels that have tile
// points.
type Product struct {
	// Name is "up", "down", "dh", "dw2", "dw1" or "dx".
	Name string
	// Backward says that it belongs to the backward pass.
	Backward bool
	// At is the product's point in a choice.
	At func(*Choice) *Point

	// Space are the points that the cost model chooses among.
	Space func(driver.Target) []Point
	// Estimate is what a cost model says of a point.
	Estimate func(Model, Point, spec.Config, driver.Target) time.Duration

	field       string
	sharedBytes func(Point) int
	// flat: its tiles have no panels.
	flat bool
}

// In is the product's point in a choice.
func (p Product) In(c Choice) Point { return *p.At(&c) }

// Products lists the products, in the order of the passes.
func Products() []Product {
	return []Product{
		{Name: "up", At: func(c *Choice) *Point { return &c.Up }, Space: UpSpace, Estimate: Model.Up,
			field: "Choice.Up", sharedBytes: Point.sharedBytes},
		{Name: "down", At: func(c *Choice) *Point { return &c.Down }, Space: DownSpace, Estimate: Model.Down,
			field: "Choice.Down", sharedBytes: Point.sharedBytes},
		{Name: "dh", Backward: true, At: func(c *Choice) *Point { return &c.DH }, Space: DHSpace, Estimate: Model.DH,
			field: "Choice.DH", sharedBytes: dhSharedBytes},
		{Name: "dw2", Backward: true, At: func(c *Choice) *Point { return &c.DW2 }, Space: DWSpace, Estimate: Model.DW2,
			field: "Choice.DW2", sharedBytes: Point.sharedBytes, flat: true},
		{Name: "dw1", Backward: true, At: func(c *Choice) *Point { return &c.DW1 }, Space: DWSpace, Estimate: Model.DW1,
			field: "Choice.DW1", sharedBytes: Point.sharedBytes, flat: true},
		{Name: "dx", Backward: true, At: func(c *Choice) *Point { return &c.DX }, Space: DXSpace, Estimate: Model.DX,
			field: "Choice.DX", sharedBytes: Point.sharedBytes},
	}
}

// FindProduct is the product of that name; the error lists the known ones.
func FindProduct(name string) (Product, error) {
	var names []string
	for _, p := range Products() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Product{}, &spec.ArgError{Field: "product", Got: name, Want: fmt.Sprintf("one of %v", names)}
}

// Alternative is a point that a search may try.
type Alternative struct {
	Point Point
	// Estimate is the cost model's.
	Estimate time.Duration
	// Rejected, unless empty, says why it is not to be tried.
	Rejected string
}

// Alternatives enumerates the product's search space for a layer: all tile
// widths, ring depths, panels and clusters, with the reason for each that no
// kernel can have or that is not worth trying.
func (p Product) Alternatives(c spec.Config, t driver.Target) []Alternative {
	space := p.Space(t)
	panels := []int{4, 8, 16, 32}
	if p.flat {
		panels = []int{1}
	}
	var list []Alternative
	for _, n := range []int{256, 192, 128} {
		for stages := deepest; stages >= shallowest; stages-- {
			for _, panel := range panels {
				for ctas := 1; ctas <= 2; ctas++ {
					q := Point{TileN: n, Stages: stages, Panel: panel, CTAs: ctas}
					if ctas == 1 && slices.ContainsFunc(space, func(s Point) bool { return s.TileN == n && s.CTAs == 0 }) {
						q.CTAs = 0 // as the space spells it
					}
					list = append(list, p.alternative(q, space, c, t))
				}
			}
		}
	}
	return list
}

// Candidates are the points of Alternatives that are not rejected.
func (p Product) Candidates(c spec.Config, t driver.Target) []Point {
	var list []Point
	for _, a := range p.Alternatives(c, t) {
		if a.Rejected == "" {
			list = append(list, a.Point)
		}
	}
	return list
}

// alternative judges one point.
func (p Product) alternative(q Point, space []Point, c spec.Config, t driver.Target) Alternative {
	a := Alternative{Point: q}
	most := 0 // stages that fit
	for _, s := range space {
		if s.TileN == q.TileN {
			most = max(most, s.Stages)
		}
	}
	shorter := 1
	if p.flat {
		shorter = 2
	}
	need := p.sharedBytes(q)
	err := q.check(p.field, space)
	switch {
	case most == 0:
		a.Rejected = fmt.Sprintf("%d columns are no tile of this product", q.TileN)
	case need > t.SharedBytesPerCTA:
		a.Rejected = fmt.Sprintf("more than %d stages of %d columns don't fit a CTA's %d bytes of shared memory", most, q.TileN, t.SharedBytesPerCTA)
	case err != nil:
		a.Rejected = err.Error()
	case q.Stages < most-shorter:
		a.Rejected = fmt.Sprintf("%d stages of %d columns fit, and at most %d less are tried", most, q.TileN, shorter)
	case q.Stages < most && !slices.Contains([]int{1, 8}, q.Panel):
		a.Rejected = "a shallower ring is tried with panels of 8 only"
	default:
		a.Estimate = p.Estimate(H200Model, q, c, t)
	}
	return a
}

// RowsPerExpert is the average number of rows of an expert at the layer's
// TokensHint, at least 1: what stored choices go by.
func RowsPerExpert(c spec.Config) int {
	tokens := c.TokensHint
	if tokens <= 0 {
		tokens = defaultTokens
	}
	return max(1, tokens*c.TopK/max(1, c.Experts))
}
