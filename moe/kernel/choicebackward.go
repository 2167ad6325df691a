package kernel

import "sonicmoe/driver"

// DHSpace are the points of the product dA', whose epilogue makes dH.
func DHSpace(t driver.Target) []Point { return clusteredMN(spaceOf(t, dhSharedBytes, dhTileN)) }

// DXSpace are the points of the product dX~.
func DXSpace(t driver.Target) []Point { return clusteredMN(space(t, 256, 192, 128)) }

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
