package kernel

import (
	"time"

	"sonicmoe/driver"
	"sonicmoe/moe/spec"
)

// DHSpace are the points of the product dA', whose epilogue makes dH.
func DHSpace(t driver.Target) []Point { return clusteredMN(spaceOf(t, dhSharedBytes, dhTileN)) }

// dhEpilogueClocks is one warpgroup's epilogue of 256 columns.
const dhEpilogueClocks = 3800

// ChooseDH picks a point of DHSpace by the cost model.
func ChooseDH(c spec.Config, t driver.Target) Point {
	m := H200Model
	return cheapest(DHSpace(t), func(p Point) time.Duration {
		return m.product(p, c, c.Intermediate, c.Hidden, dhEpilogueClocks, t)
	})
}

// DXSpace are the points of the product dX~.
func DXSpace(t driver.Target) []Point { return clusteredMN(space(t, 256, 192, 128)) }

// ChooseDX picks a point of DXSpace by the cost model.
func ChooseDX(c spec.Config, t driver.Target) Point {
	m := H200Model
	return cheapest(DXSpace(t), func(p Point) time.Duration {
		return m.product(p, c, c.Hidden, 2*c.Intermediate, m.DownEpilogueClocks, t)
	})
}
