package kernel

import "sonicmoe/driver"

// DHSpace are the points of the product dA', whose epilogue makes dH: half of
// the widest tile, so that the ring has stages enough to go on under it.
func DHSpace(t driver.Target) []Point {
	return append(spaceOf(t, dhSharedBytes, 192), clusteredMN(spaceOf(t, dhSharedBytes, 128))...)
}

// DXSpace are the points of the product dX~. In clusters the widest tile's
// router term finds no registers.
func DXSpace(t driver.Target) []Point {
	return append(space(t, 256, 192), clusteredMN(space(t, 128))...)
}

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
