package cuda

import (
	"fmt"
	"runtime"
	"unsafe"

	"sonicmoe/driver"
)

// This file opens device memory of other processes on this host, and orders their streams.

// Allocation is a piece of device memory that one call has allocated.
type Allocation struct {
	// ID differs from the ID of every other allocation of this process, also of earlier ones at the
	// same address.
	ID uint64
	// From is the first address. Bytes is the size.
	From  driver.DevicePtr
	Bytes int64
}

// MemoryHandle names an allocation for other processes.
type MemoryHandle [64]byte

// These are constants of the driver's functions for memory of other processes.
const (
	attributeBufferID  = 7 // CU_POINTER_ATTRIBUTE_BUFFER_ID
	lazyPeerAccess     = 1 // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
	registeredPortable = 1 // CU_MEMHOSTREGISTER_PORTABLE
	registeredMapped   = 2 // CU_MEMHOSTREGISTER_DEVICEMAP
)

// own returns dev as a device of this package.
func own(dev driver.Device, s symbol) (*device, error) {
	d, ok := dev.(*device)
	if !ok {
		return nil, &driver.Error{Op: s.String(), Kind: driver.ErrUnsupported, Text: fmt.Sprintf("the device is a %T, want one of this package", dev)}
	}
	return d, nil
}

// AllocationOf returns the allocation that has the memory at an address.
func AllocationOf(dev driver.Device, p driver.DevicePtr) (a Allocation, err error) {
	d, err := own(dev, symMemGetAddressRange)
	if err != nil {
		return a, err
	}
	var from, bytes uint64
	if err := d.do(symMemGetAddressRange, uintptr(unsafe.Pointer(&from)), uintptr(unsafe.Pointer(&bytes)), uintptr(p)); err != nil {
		return a, withText(err, "address %#x", uint64(p))
	}
	if err := d.do(symPointerGetAttribute, uintptr(unsafe.Pointer(&a.ID)), attributeBufferID, uintptr(p)); err != nil {
		return a, withText(err, "address %#x", uint64(p))
	}
	a.From, a.Bytes = driver.DevicePtr(from), int64(bytes)
	return a, nil
}

// Export returns the handle by which another process opens an allocation. It fails for memory from a
// pool, and for memory that the driver's functions for virtual memory have mapped.
func Export(dev driver.Device, a Allocation) (h MemoryHandle, err error) {
	d, err := own(dev, symIpcGetMemHandle)
	if err != nil {
		return h, err
	}
	to := new(MemoryHandle)
	err = d.do(symIpcGetMemHandle, uintptr(unsafe.Pointer(to)), uintptr(a.From))
	return *to, withText(err, "%d bytes at %#x", a.Bytes, uint64(a.From))
}

// Import opens an allocation of another process, and returns its first address in this process. The
// other process must not free the memory before CloseImport.
func Import(dev driver.Device, h MemoryHandle) (driver.DevicePtr, error) {
	d, err := own(dev, symIpcOpenMemHandle)
	if err != nil {
		return 0, err
	}
	p, words := new(uint64), (*[8]uintptr)(unsafe.Pointer(&h))
	if runtime.GOARCH == "arm64" {
		// A structure of 64 bytes is passed by its address.
		err = d.do(symIpcOpenMemHandle, uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(words)), lazyPeerAccess)
		return driver.DevicePtr(*p), err
	}
	// On amd64 a structure of 64 bytes is passed on the stack, after six arguments in registers.
	args := []uintptr{uintptr(unsafe.Pointer(p)), lazyPeerAccess, 0, 0, 0, 0}
	err = d.doSlice(symIpcOpenMemHandle, append(args, words[:]...))
	runtime.KeepAlive(p)
	return driver.DevicePtr(*p), err
}

// CloseImport closes an allocation that Import has opened at an address.
func CloseImport(dev driver.Device, p driver.DevicePtr) error {
	d, err := own(dev, symIpcCloseMemHandle)
	if err != nil {
		return err
	}
	return d.doNumbers(symIpcCloseMemHandle, uintptr(p))
}

// RegisterHost lets a device use host memory, and returns the device's address of the memory. The
// memory must be whole pages that the program has mapped itself.
func RegisterHost(dev driver.Device, memory []byte) (driver.DevicePtr, error) {
	d, err := own(dev, symMemHostRegister)
	if err != nil {
		return 0, err
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	if err := d.doNumbers(symMemHostRegister, at, uintptr(len(memory)), registeredPortable|registeredMapped); err != nil {
		return 0, withText(err, "%d bytes", len(memory))
	}
	var p uint64
	if err := d.do(symHostDevicePointer, uintptr(unsafe.Pointer(&p)), at, 0); err != nil {
		_ = d.doNumbers(symMemHostUnregister, at) // the first error tells more
		return 0, err
	}
	return driver.DevicePtr(p), nil
}

// UnregisterHost undoes RegisterHost.
func UnregisterHost(dev driver.Device, memory []byte) error {
	d, err := own(dev, symMemHostUnregister)
	if err != nil {
		return err
	}
	return d.doNumbers(symMemHostUnregister, uintptr(unsafe.Pointer(unsafe.SliceData(memory))))
}

// WriteValue queues a store of a word. Before it, the results of earlier work of the stream become
// visible to all processes.
func WriteValue(s driver.Stream, p driver.DevicePtr, value uint32) error {
	return streamValue(symStreamWriteValue, s, p, value)
}

// WaitValue makes later work of the stream wait until the word at an address has reached a value, or
// is at most 2^31 - 1 above it.
func WaitValue(s driver.Stream, p driver.DevicePtr, value uint32) error {
	return streamValue(symStreamWaitValue, s, p, value)
}

func streamValue(op symbol, on driver.Stream, p driver.DevicePtr, value uint32) error {
	s, ok := on.(*stream)
	if !ok {
		return &driver.Error{Op: op.String(), Kind: driver.ErrUnsupported, Text: fmt.Sprintf("the stream is a %T, want one of this package", on)}
	}
	if err := s.use(op.String(), "stream"); err != nil {
		return err
	}
	defer s.leave()
	return withText(s.dev.doNumbers(op, s.raw, uintptr(p), uintptr(value), 0), "address %#x", uint64(p))
}
