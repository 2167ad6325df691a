package cuda

import (
	"fmt"
	"strings"
	"unsafe"

	"sonicmoe/driver"
)

// Diagnosis is the result of a search for GPUs, for bug reports.
type Diagnosis struct {
	// Tried lists the library names in the order in which they were tried, each with "opened"
	// or the system's error.
	Tried []string
	// DriverVersion is the driver's CUDA version times 1000: 13000 for 13.0. It is 0
	// if no library could be used.
	DriverVersion int
	// Devices lists the GPUs that were found, by ordinal.
	Devices []driver.Target
	// Failure is the first error, or nil if there was none.
	Failure error
}

// Diagnose looks for GPUs in the same way as Open, and returns what it finds. It creates no
// context, so it does not affect other programs.
func Diagnose(o Options) Diagnosis {
	var d Diagnosis
	lib, tried, err := openLibrary(o.Library)
	for _, a := range tried {
		if a.Err != nil {
			d.Tried = append(d.Tried, fmt.Sprintf("%s: %v", a.Name, a.Err))
		} else {
			d.Tried = append(d.Tried, a.Name+": opened")
		}
	}
	if err != nil {
		d.Failure = err
		return d
	}
	d.DriverVersion = lib.version
	var count int32
	if r := lib.call(symDeviceGetCount, uintptr(unsafe.Pointer(&count))); r != success {
		d.Failure = lib.failure(symDeviceGetCount, r)
		return d
	}
	for i := range count {
		var ordinal int32
		if r := lib.call(symDeviceGet, uintptr(unsafe.Pointer(&ordinal)), uintptr(i)); r != success {
			d.Failure = lib.failure(symDeviceGet, r)
			return d
		}
		t, err := lib.target(ordinal)
		if err != nil {
			d.Failure = err
			return d
		}
		d.Devices = append(d.Devices, t)
	}
	return d
}

// Count returns the number of GPUs that the driver reports. Without a driver it returns 0, and
// Open returns the reason. Count creates no context.
func Count(o Options) (int, error) {
	d := Diagnose(o)
	if d.Failure != nil && len(d.Devices) > 0 {
		return 0, &driver.Error{Op: fmt.Sprintf("open GPU %d", len(d.Devices)), Kind: driver.ErrNoDevice, Cause: d.Failure}
	}
	return len(d.Devices), nil
}

// String returns the diagnosis as lines of text.
func (d Diagnosis) String() string {
	var b strings.Builder
	for _, t := range d.Tried {
		fmt.Fprintln(&b, "driver library", t)
	}
	if d.DriverVersion != 0 {
		fmt.Fprintln(&b, "driver version CUDA", versionText(d.DriverVersion))
		fmt.Fprintln(&b, "GPUs:", len(d.Devices))
	}
	for i, t := range d.Devices {
		fmt.Fprintf(&b, "GPU %d: %s, compute capability %d.%d, %d SMs\n", i, t.Name, t.Major, t.Minor, t.SMs)
	}
	if d.Failure != nil {
		fmt.Fprintln(&b, "failed:", d.Failure)
	}
	return b.String()
}
