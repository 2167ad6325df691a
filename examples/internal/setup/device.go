// Package setup has the parts that example programs with layers share: flags for devices, sizes and
// weights.
package setup

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/examples/internal/command"
)

// Emulated is the name of the device that needs no GPU.
const Emulated = "emulated"

// DeviceFlag declares -device.
func DeviceFlag(set *flag.FlagSet) *string {
	return set.String("device", "", "`name` of the device: "+strings.Join(open.Names(), ", ")+" (default: a GPU, else emulated)")
}

// CacheFlag declares -cache.
func CacheFlag(set *flag.FlagSet) *string {
	return set.String("cache", "", "`directory` of compiled kernels, or off (default: the user's)")
}

// OpenDevice opens the device with the given name. If name is empty, it opens a GPU. If there
// is none, it opens the emulated device and prints a message to stderr. gpu reports whether the
// device is a GPU.
func OpenDevice(ctx context.Context, name string, stderr io.Writer) (dev driver.Device, gpu bool, err error) {
	if name != "" {
		switch dev, err = open.Device(ctx, name); {
		case errors.Is(err, driver.ErrInvalid):
			return nil, false, command.Usagef("-device %s: %w", name, err)
		case err != nil:
			return nil, false, fmt.Errorf("-device %s: %w", name, err)
		}
		if name == Emulated {
			noMachineCode(stderr)
		}
		return dev, name != Emulated, nil
	}
	if dev, err = open.Device(ctx, "cuda"); !errors.Is(err, driver.ErrNoDevice) {
		return dev, true, err
	}
	fmt.Fprintln(stderr, "no GPU: this is the emulated device (-device cuda says what is missing)")
	noMachineCode(stderr)
	dev, err = open.Device(ctx, Emulated)
	return dev, false, err
}

// noMachineCode prints why shared directories and bundles in $SONICMOE_CACHE, if there are any,
// do not help the emulated device.
func noMachineCode(stderr io.Writer) {
	if _, shared, ok := strings.Cut(os.Getenv("SONICMOE_CACHE"), string(filepath.ListSeparator)); ok {
		fmt.Fprintf(stderr, "the emulated device runs PTX, and takes no machine code: %s is for GPUs and saves no compilation here\n", shared)
	}
}

// EmulatedFLOPs is an upper bound of the operations that the emulated device does in a second.
const EmulatedFLOPs = 1e9
