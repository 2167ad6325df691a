package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/moe/spec"
)

// DHSpace are the points of the product dA', whose epilogue makes dH.
func DHSpace(t driver.Target) []Point { return spaceOf(t, dhSharedBytes, 256, 192, 128) }

// ChooseDH picks a point of DHSpace by the cost model.
func ChooseDH(c spec.Config, t driver.Target) Point {
	return cheapest(DHSpace(t), c, c.Intermediate, c.Hidden, t)
}

// DXSpace are the points of the product dX~.
func DXSpace(t driver.Target) []Point { return space(t, 256, 192, 128) }

// ChooseDX picks a point of DXSpace by the cost model.
func ChooseDX(c spec.Config, t driver.Target) Point {
	return cheapest(DXSpace(t), c, c.Hidden, 2*c.Intermediate, t)
}
