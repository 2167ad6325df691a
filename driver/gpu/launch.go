package gpu

import (
	"fmt"

	"sonicmoe/driver"
)

// Dim3 holds extents in x, y and z. A zero field counts as one.
type Dim3 struct{ X, Y, Z int }

// Count returns the number of elements. A zero field counts as one.
func (d Dim3) Count() int {
	return max(d.X, 1) * max(d.Y, 1) * max(d.Z, 1)
}

// Launch is the shape of a kernel launch.
type Launch struct {
	Grid, Block Dim3
	// Cluster is the size of a cluster in CTAs. The zero value means no clusters.
	Cluster Dim3
	// SharedBytes is the dynamic shared memory of each CTA, in bytes.
	SharedBytes int
	// Programmatic lets this kernel start before its predecessor in the stream has
	// ended (programmatic dependent launch). The kernel must execute
	// griddepcontrol.wait before it uses data that the predecessor wrote.
	Programmatic bool
}

// These are limits of every launch. They are the same on all GPUs so far.
const (
	maxGridX   = 1<<31 - 1
	maxGridYZ  = 1<<16 - 1
	maxThreads = 1024
	maxBlockZ  = 64
	maxCluster = 16
)

// Check returns an error for the first rule that the launch breaks. It checks the rules that
// are common to all devices and kernels. The device checks SharedBytes.
func (l *Launch) Check() error {
	switch {
	case l.Grid.X < 0 || l.Grid.X > maxGridX:
		return badLaunch("Grid.X", l.Grid.X, "0 to 2^31-1")
	case l.Grid.Y < 0 || l.Grid.Y > maxGridYZ:
		return badLaunch("Grid.Y", l.Grid.Y, "0 to 65535")
	case l.Grid.Z < 0 || l.Grid.Z > maxGridYZ:
		return badLaunch("Grid.Z", l.Grid.Z, "0 to 65535")
	case l.Block.X < 0 || l.Block.X > maxThreads:
		return badLaunch("Block.X", l.Block.X, "0 to 1024")
	case l.Block.Y < 0 || l.Block.Y > maxThreads:
		return badLaunch("Block.Y", l.Block.Y, "0 to 1024")
	case l.Block.Z < 0 || l.Block.Z > maxBlockZ:
		return badLaunch("Block.Z", l.Block.Z, "0 to 64")
	case l.Block.Count() > maxThreads:
		return badLaunch("Block", l.Block.Count(), "at most 1024 threads")
	case l.SharedBytes < 0 || l.SharedBytes > 1<<30:
		return badLaunch("SharedBytes", l.SharedBytes, "0 to the device's limit")
	}
	return l.checkCluster()
}

func (l *Launch) checkCluster() error {
	c := l.Cluster
	if c == (Dim3{}) {
		return nil
	}
	if c.X < 0 || c.Y < 0 || c.Z < 0 || c.X > maxCluster || c.Y > maxCluster || c.Z > maxCluster || c.Count() > maxCluster {
		return badLaunch("Cluster", fmt.Sprintf("%dx%dx%d", c.X, c.Y, c.Z), "at most 16 CTAs")
	}
	if max(l.Grid.X, 1)%max(c.X, 1) != 0 || max(l.Grid.Y, 1)%max(c.Y, 1) != 0 || max(l.Grid.Z, 1)%max(c.Z, 1) != 0 {
		return badLaunch("Grid", fmt.Sprintf("%dx%dx%d", l.Grid.X, l.Grid.Y, l.Grid.Z),
			fmt.Sprintf("a multiple of the cluster %dx%dx%d", c.X, c.Y, c.Z))
	}
	return nil
}

func badLaunch(field string, got any, want string) error {
	return &driver.Error{Op: "launch", Name: "invalid value",
		Text: fmt.Sprintf("%s is %v, must be %s", field, got, want), Kind: driver.ErrInvalid}
}
