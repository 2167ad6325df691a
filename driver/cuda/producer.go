package cuda

import (
	"strconv"
	"strings"
)

// ptxVersions are the PTX versions that came with each CUDA version.
var ptxVersions = []struct{ cuda, ptx int }{
	{12000, 80}, {12010, 81}, {12020, 82}, {12030, 83}, {12040, 84}, {12050, 85},
	{12070, 86}, {12080, 87}, {12090, 88}, {13000, 90}, {13010, 91},
}

// MaxPTXVersion implements driver.Device. A driver newer than this package
// knows is held to the newest version known here.
func (d *device) MaxPTXVersion() int {
	newest := 0
	for _, v := range ptxVersions {
		if d.lib.version >= v.cuda {
			newest = v.ptx
		}
	}
	return newest
}

// Producer implements driver.Device: "driver 13000".
func (d *device) Producer() string { return "driver " + strconv.Itoa(d.lib.version) }

// Accepts implements driver.Device: machine code of ptxas or of a driver, of
// this driver's major version or an older one. Within a major version NVIDIA
// promises that even older drivers load it.
func (d *device) Accepts(producer string) bool {
	name, version, _ := strings.Cut(producer, " ")
	switch name {
	case "driver":
		v, err := strconv.Atoi(version)
		return err == nil && v > 0 && v/1000 <= d.lib.version/1000
	case "ptxas":
		major, _, _ := strings.Cut(version, ".")
		v, err := strconv.Atoi(major)
		return err == nil && v > 0 && v <= d.lib.version/1000
	}
	return false
}
