package moe_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"sonicmoe/driver"
	"sonicmoe/driver/drivertest"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/open"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/ptx/emu"
)

// With SONICMOE_CHECK=n this package's tests run on a device that runs each launch
// early, late and in n random orders and looks for races and for every proxy fence;
// at the end they say which kernels of the registry no test launched.
var checked = func() int {
	n, err := strconv.Atoi(os.Getenv("SONICMOE_CHECK"))
	if err != nil || drivertest.Name() != "emulated" {
		return 0
	}
	return n
}()

// openTestDevice opens the tests' device.
func openTestDevice() (driver.Device, error) {
	if checked == 0 {
		return open.Device(context.Background(), drivertest.Name())
	}
	return emulated.New(emulated.Options{Check: checked, StrictProxy: true, Launching: checks.note})
}

// checks are how often each kernel was checked.
var checks = counter{of: map[string]int{}}

type counter struct {
	sync.Mutex
	of map[string]int
}

func (c *counter) note(k *emu.Kernel, _ *emu.Memory, _ emu.Launch) {
	c.Lock()
	defer c.Unlock()
	c.of[k.Name()]++
}

// reportChecked says which kernels were checked, and which not.
func reportChecked() {
	left, least := map[string]bool{}, 0
	for _, l := range kt.Layers {
		sources, err := moe.Sources(driver.H200(), l.Config, moe.WithTiles(l.Tiles))
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, s := range sources {
			left[s.Name] = true
		}
	}
	total := len(left)
	for name := range left {
		if n := checks.of[name]; n > 0 {
			delete(left, name)
			if least == 0 || n < least {
				least = n
			}
		}
	}
	fmt.Printf("%d of %d kernels checked in %d orders a launch, each in %d launches at least; left out: %s\n",
		total-len(left), total, 2+checked, least, strings.Join(slices.Sorted(maps.Keys(left)), ", "))
}
