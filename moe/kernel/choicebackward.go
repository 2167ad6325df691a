package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/moe/spec"
)

// DXSpace are the points of the product dX~.
func DXSpace(t driver.Target) []Point { return space(t, 256, 192, 128) }

// ChooseDX picks a point of DXSpace by the cost model.
func ChooseDX(c spec.Config, t driver.Target) Point {
	return cheapest(DXSpace(t), c, c.Hidden, 2*c.Intermediate, t)
}
