//go:build linux && (amd64 || arm64)

// Package nvml reads a GPU's energy from NVIDIA's management library, libnvidia-ml, which
// comes with the driver. Source: NVML API Reference, Device Queries.
package nvml

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
)

// names are tried in order. The system's loader finds the first. The second is the path in the
// Windows Subsystem for Linux.
var names = []string{"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"}

// Meter reads the energy of one GPU.
type Meter struct {
	device      uintptr
	totalEnergy func(device uintptr, millijoules *uint64) int32
	errorString func(code int32) string
	shutdown    func() int32
}

// Open opens the meter of the GPU with a PCI bus address, such as "0000:1b:00.0".
func Open(bus string) (*Meter, error) { return open(names, bus) }

func open(names []string, bus string) (*Meter, error) {
	library, err := load(names)
	if err != nil {
		return nil, err
	}
	m := &Meter{}
	var start func() int32
	var byBus func(bus *byte, device *uintptr) int32
	for _, f := range []struct {
		to   any
		name string
	}{
		{&start, "nvmlInit_v2"}, {&byBus, "nvmlDeviceGetHandleByPciBusId_v2"}, {&m.totalEnergy, "nvmlDeviceGetTotalEnergyConsumption"},
		{&m.errorString, "nvmlErrorString"}, {&m.shutdown, "nvmlShutdown"},
	} {
		at, err := purego.Dlsym(library, f.name)
		if err != nil {
			return nil, fmt.Errorf("NVML lacks %s: %w", f.name, err)
		}
		purego.RegisterFunc(f.to, at)
	}
	if err := m.check("nvmlInit_v2", start()); err != nil {
		return nil, err
	}
	text := append([]byte(bus), 0)
	if err := m.check("nvmlDeviceGetHandleByPciBusId_v2 of "+bus, byBus(unsafe.SliceData(text), &m.device)); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// load opens the first library of names that exists.
func load(names []string) (uintptr, error) {
	var all []error
	for _, name := range names {
		library, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err == nil {
			return library, nil
		}
		all = append(all, err)
	}
	return 0, fmt.Errorf("NVIDIA's management library could not be opened: %w", errors.Join(all...))
}

// Joules returns the energy that the GPU has used since its driver was loaded.
func (m *Meter) Joules() (float64, error) {
	var millijoules uint64
	err := m.check("nvmlDeviceGetTotalEnergyConsumption", m.totalEnergy(m.device, &millijoules))
	return float64(millijoules) / 1e3, err
}

// Close releases the library.
func (m *Meter) Close() error { return m.check("nvmlShutdown", m.shutdown()) }

// check returns the error for the code that a function returned.
func (m *Meter) check(function string, code int32) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s (NVML code %d)", function, m.errorString(code), code)
}
