package moe_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sonicmoe/driver"
	"sonicmoe/driver/drivertest"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/open"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/ptx/emu"
)

// With SONICMOE_CHECK=n this package's tests run on a device that looks for races and
// for every proxy fence, and checks launches of each kernel of the registry early, late
// and in n random orders: of up to three of a kernel's texts each the first launch that
// takes no more than checkedTime. In the end they fail where something was found, or a
// kernel of the registry was not launched.
var checked = func() int {
	n, err := strconv.Atoi(os.Getenv("SONICMOE_CHECK"))
	if err != nil || drivertest.Name() != "emulated" {
		return 0
	}
	return n
}()

const (
	checkedTexts = 3
	checkedTime  = 2 * time.Minute
)

// openTestDevice opens the tests' device.
func openTestDevice() (driver.Device, error) {
	if checked == 0 {
		return open.Device(context.Background(), drivertest.Name())
	}
	return emulated.New(emulated.Options{Races: true, StrictProxy: true, Launching: checks.launching})
}

// checks are the kernels that were checked, and what was found.
var checks = checkedKernels{of: map[string][]*emu.Kernel{}}

type checkedKernels struct {
	sync.Mutex
	of    map[string][]*emu.Kernel
	found []string
}

// launching checks a launch, on memory of its own.
func (c *checkedKernels) launching(k *emu.Kernel, mem *emu.Memory, l emu.Launch) {
	c.Lock()
	defer c.Unlock()
	if texts := c.of[k.Name()]; len(texts) == checkedTexts || slices.Contains(texts, k) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkedTime)
	defer cancel()
	err := k.Check(ctx, mem.Clone(), l, checked)
	if errors.Is(err, context.DeadlineExceeded) {
		return // a smaller one may come
	}
	if err != nil {
		c.found = append(c.found, err.Error())
	}
	c.of[k.Name()] = append(c.of[k.Name()], k)
}

// report says which kernels were checked, which not, and what was found. It reports
// that all is well.
func (c *checkedKernels) report() bool {
	left, launches := map[string]bool{}, 0
	for _, l := range kt.Layers {
		sources, err := moe.Sources(driver.H200(), l.Config, moe.WithTiles(l.Tiles))
		if err != nil {
			fmt.Println(err)
			return false
		}
		for _, s := range sources {
			left[s.Name] = true
		}
	}
	total := len(left)
	for name, texts := range c.of {
		delete(left, name)
		launches += len(texts)
	}
	fmt.Printf("%d of %d kernels checked in %d launches, each in %d orders; left out: %s\n",
		total-len(left), total, launches, 2+checked, strings.Join(slices.Sorted(maps.Keys(left)), ", "))
	for _, f := range c.found {
		fmt.Println(f)
	}
	return len(left) == 0 && len(c.found) == 0
}
