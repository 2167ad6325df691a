package kernel

import "sonicmoe/driver"

// DHSpace are the points of the product dA', whose epilogue makes dH: half of
// the widest tile, so that the ring has stages enough to go on under it.
// Clusters, good for long sums, want a wide panel (30B n=256: 13 % of the time).
func DHSpace(t driver.Target) []Point {
	return clusteredMN(spaceOf(t, dhSharedBytes, 128))
}

// DXSpace are the points of the product dX~. In clusters the widest tile's
// router term finds no registers.
func DXSpace(t driver.Target) []Point {
	return append(space(t, 256, 192), clusteredMN(space(t, 128))...)
}

// DWSpace are the points of the weight gradients. Their tiles have no panels.
func DWSpace(t driver.Target) []Point {
	points := space(t, 256, 192, 128)
	for i := range points {
		points[i].Panel = 1
	}
	return points
}
