package cuda

import (
	"fmt"
	"strings"
	"unsafe"

	"sonicmoe/driver"
)

// Diagnosis is what a search for GPUs met, for bug reports.
type Diagnosis struct {
	// Tried are the library names tried in order, each with "opened" or the
	// system's reason.
	Tried []string
	// DriverVersion is the driver's CUDA version times 1000: 13000 for 13.0.
	// 0 when no library answered.
	DriverVersion int
	// Devices are the GPUs found, by ordinal.
	Devices []driver.Target
	// Failure is the first thing that failed, nil when nothing did.
	Failure error
}

// Diagnose looks for GPUs the way Open does, and says what it met. It makes
// no context, so it disturbs nobody.
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

// Count is how many GPUs the driver shows, and 0 where there is no driver: then
// Open says why. It makes no context.
func Count(o Options) (int, error) {
	d := Diagnose(o)
	if d.Failure != nil && len(d.Devices) > 0 {
		return 0, &driver.Error{Op: fmt.Sprintf("open GPU %d", len(d.Devices)), Kind: driver.ErrNoDevice, Cause: d.Failure}
	}
	return len(d.Devices), nil
}

// String is the diagnosis in lines of text.
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
