package cuda

import (
	"strconv"
	"strings"
)

// ptxVersions lists the newest PTX version that each CUDA version supports.
var ptxVersions = []struct{ cuda, ptx int }{
	{12000, 80}, {12010, 81}, {12020, 82}, {12030, 83}, {12040, 84}, {12050, 85},
	{12070, 86}, {12080, 87}, {12090, 88}, {13000, 90}, {13010, 91},
}

// MaxPTXVersion implements gpu.Device. For a driver that is newer than the list ptxVersions, it
// returns the newest version in the list.
func (d *device) MaxPTXVersion() int {
	newest := 0
	for _, v := range ptxVersions {
		if d.lib.version >= v.cuda {
			newest = v.ptx
		}
	}
	return newest
}

// Producer implements driver.Device. It returns "driver 13000 580.95.05": the CUDA version and,
// if it is known, the exact build.
func (d *device) Producer() string {
	producer := "driver " + strconv.Itoa(d.lib.version)
	if d.lib.build != "" {
		producer += " " + d.lib.build
	}
	return producer
}

// Accepts implements gpu.Device. It accepts machine code of exactly this build of the driver,
// and of a ptxas of the same or an older major version, which NVIDIA guarantees to load.
// Machine code of other driver builds would also load. It is refused because builds fix
// compiler bugs, so that each build compiles once for itself.
func (d *device) Accepts(producer string) bool {
	if version, ok := strings.CutPrefix(producer, "ptxas "); ok {
		major, _, _ := strings.Cut(version, ".")
		v, err := strconv.Atoi(major)
		return err == nil && v > 0 && v <= d.lib.version/1000
	}
	return producer == d.Producer()
}
