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
	// Name is "up", "down", "dh", "dx", "dw1" or "dw2".
	Name string
	// Backward says that it belongs to the backward pass.
	Backward bool
	// At is the product's point in a choice.
	At func(*Choice) *Point

	field       string
	space       func(driver.Target) []Point
	sharedBytes func(Point) int
	estimate    func(Point, spec.Config, driver.Target) time.Duration
	noPanels    bool
}

// Products lists the products, forward first.
func Products() []Product {
	m := H200Model
	return []Product{
		{Name: "up", field: "Choice.Up", At: func(c *Choice) *Point { return &c.Up }, space: UpSpace, sharedBytes: Point.sharedBytes, estimate: m.Up},
		{Name: "down", field: "Choice.Down", At: func(c *Choice) *Point { return &c.Down }, space: DownSpace, sharedBytes: Point.sharedBytes, estimate: m.Down},
		{Name: "dh", field: "Choice.DH", Backward: true, At: func(c *Choice) *Point { return &c.DH }, space: DHSpace, sharedBytes: dhSharedBytes, estimate: m.DH},
		{Name: "dx", field: "Choice.DX", Backward: true, At: func(c *Choice) *Point { return &c.DX }, space: DXSpace, sharedBytes: Point.sharedBytes, estimate: m.DX},
		{Name: "dw1", field: "Choice.DW1", Backward: true, At: func(c *Choice) *Point { return &c.DW1 }, space: DWSpace, sharedBytes: Point.sharedBytes, estimate: m.DW1, noPanels: true},
		{Name: "dw2", field: "Choice.DW2", Backward: true, At: func(c *Choice) *Point { return &c.DW2 }, space: DWSpace, sharedBytes: Point.sharedBytes, estimate: m.DW2, noPanels: true},
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
	space := p.space(t)
	panels := []int{4, 8, 16, 32}
	if p.noPanels {
		panels = []int{1}
	}
	var list []Alternative
	for _, n := range []int{256, 192, 128} {
		for stages := deepest; stages >= shallowest; stages-- {
			for _, panel := range panels {
				for ctas := 1; ctas <= 2; ctas++ {
					q := Point{TileN: n, Stages: stages, Panel: panel, CTAs: ctas}
					if p.noPanels && ctas == 1 {
						q.CTAs = 0 // as DWSpace has it
					}
					list = append(list, p.alternative(q, space, c, t))
				}
			}
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
	need := p.sharedBytes(q)
	err := q.check(p.field, space)
	switch {
	case most == 0:
		a.Rejected = fmt.Sprintf("%d columns are no tile of this product", q.TileN)
	case need > t.SharedBytesPerCTA:
		a.Rejected = fmt.Sprintf("more than %d stages of %d columns don't fit a CTA's %d bytes of shared memory", most, q.TileN, t.SharedBytesPerCTA)
	case err != nil:
		a.Rejected = err.Error()
	case q.Stages < most-1:
		a.Rejected = fmt.Sprintf("%d stages of %d columns fit, and at most one less is tried", most, q.TileN)
	case q.Stages < most && !slices.Contains([]int{1, 8}, q.Panel):
		a.Rejected = "a shallower ring is tried with panels of 8 only"
	default:
		a.Estimate = p.estimate(q, c, t)
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
