//go:build cgo && linux

package main

// #include "cuda.h"
import "C"

// This file allocates memory. Exported functions have the names that CUDA's documentation gives.

func (d *device) alloc(bytes uintptr) (uintptr, error) {
	if err := d.ready(); err != nil || bytes == 0 {
		return 0, err
	}
	if bytes > memoryBytes {
		return 0, outOfMemory.plain()
	}
	d.work.Lock()
	defer d.work.Unlock()
	p, err := d.mem.Alloc(int64(bytes))
	return uintptr(p), err
}

func (d *device) free(p uintptr) error {
	if err := d.ready(); err != nil || p == 0 {
		return err
	}
	if pin, ok := d.pinnedAt(p); ok && pin.managed {
		return d.unpin(p, true)
	}
	d.work.Lock()
	defer d.work.Unlock()
	return d.mem.Free(uint64(p))
}

//export cudaMalloc
func cudaMalloc(p *uintptr, bytes uintptr) int32 {
	if p == nil {
		return result("cudaMalloc", invalidValue.plain())
	}
	var err error
	*p, err = dev().alloc(bytes)
	return result("cudaMalloc", err)
}

//export cudaFree
func cudaFree(p uintptr) int32 { return result("cudaFree", dev().free(p)) }

//export cudaMallocAsync
func cudaMallocAsync(p *uintptr, bytes, stream uintptr) int32 {
	return result("cudaMallocAsync", dev().allocAsync(p, bytes, stream))
}

//export cudaMallocFromPoolAsync
func cudaMallocFromPoolAsync(p *uintptr, bytes, _, stream uintptr) int32 {
	return result("cudaMallocFromPoolAsync", dev().allocAsync(p, bytes, stream))
}

// allocAsync allocates memory at once. If a graph captures the call, every launch of the graph uses
// this memory.
func (d *device) allocAsync(p *uintptr, bytes, stream uintptr) (err error) {
	s, err := look(d, d.streams, stream, "stream")
	if err != nil {
		return err
	}
	if *p, err = d.alloc(bytes); err == nil && s.capture() != nil {
		_, err = s.do(&node{kind: nodeAlloc})
	}
	return err
}

//export cudaFreeAsync
func cudaFreeAsync(p, stream uintptr) int32 {
	d := dev()
	s, err := look(d, d.streams, stream, "stream")
	switch {
	case err != nil:
	case s.capture() != nil: // the memory stays, because each launch of the graph uses it
		_, err = s.do(&node{kind: nodeFree})
	default:
		err = d.free(p)
	}
	return result("cudaFreeAsync", err)
}

// rowBytes is the alignment of rows that cudaMallocPitch chooses.
const rowBytes = 512

//export cudaMallocPitch
func cudaMallocPitch(p, pitch *uintptr, width, height uintptr) (r int32) {
	*pitch = (width + rowBytes - 1) / rowBytes * rowBytes
	var err error
	*p, err = dev().alloc(*pitch * height)
	return result("cudaMallocPitch", err)
}

//export cudaMalloc3D
func cudaMalloc3D(p *C.pitched_ptr, size C.extent) int32 {
	pitch := (uintptr(size.width) + rowBytes - 1) / rowBytes * rowBytes
	at, err := dev().alloc(pitch * uintptr(size.height) * uintptr(size.depth))
	*p = C.pitched_ptr{at: C.uintptr_t(at), pitch: C.size_t(pitch), width: size.width, height: size.height}
	return result("cudaMalloc3D", err)
}

//export cudaMallocManaged
func cudaMallocManaged(p *uintptr, bytes uintptr, flags uint32) (r int32) {
	var err error
	*p, err = dev().share(uint64(bytes), true, flags)
	return result("cudaMallocManaged", err)
}

//export cudaMallocHost
func cudaMallocHost(p *uintptr, bytes uintptr) int32 { return cudaHostAlloc(p, bytes, 0) }

//export cudaHostAlloc
func cudaHostAlloc(p *uintptr, bytes uintptr, flags uint32) int32 {
	var err error
	*p, err = dev().share(uint64(bytes), false, flags)
	return result("cudaHostAlloc", err)
}

//export cudaFreeHost
func cudaFreeHost(p uintptr) int32 { return result("cudaFreeHost", dev().unpin(p, true)) }

//export cudaHostRegister
func cudaHostRegister(p, bytes uintptr, flags uint32) int32 {
	var err error
	if p == 0 || bytes == 0 {
		err = invalidValue.plain()
	} else {
		err = dev().pin(p, pinned{bytes: int(bytes), flags: flags})
	}
	return result("cudaHostRegister", err)
}

//export cudaHostUnregister
func cudaHostUnregister(p uintptr) int32 { return result("cudaHostUnregister", dev().unpin(p, false)) }

//export cudaHostGetDevicePointer
func cudaHostGetDevicePointer(device *uintptr, host uintptr, _ uint32) int32 {
	if _, ok := dev().pinnedAt(host); !ok {
		return result("cudaHostGetDevicePointer", failed(invalidValue, "%#x is not memory that host and device share", host))
	}
	*device = host
	return 0
}

//export cudaHostGetFlags
func cudaHostGetFlags(flags *uint32, host uintptr) int32 {
	p, ok := dev().pinnedAt(host)
	if !ok {
		return result("cudaHostGetFlags", invalidValue.plain())
	}
	*flags = p.flags | 2 // memory of the host is always mapped
	return 0
}

// Types of memory of cudaPointerGetAttributes.
const (
	unregisteredMemory = 0
	hostMemory         = 1
	deviceMemory       = 2
	managedMemory      = 3
)

// typeOf returns the type of the memory that contains an address.
func (d *device) typeOf(p uintptr) int32 {
	if pin, ok := d.pinnedAt(p); ok {
		if pin.managed {
			return managedMemory
		}
		return hostMemory
	}
	if _, _, ok := d.mem.Range(uint64(p)); ok {
		return deviceMemory
	}
	return unregisteredMemory
}

//export cudaPointerGetAttributes
func cudaPointerGetAttributes(a *C.pointer_attributes, p uintptr) int32 {
	t := dev().typeOf(p)
	*a = C.pointer_attributes{_type: C.int32_t(t)}
	if t == unregisteredMemory {
		a.device = -2
	}
	if t != unregisteredMemory {
		a.device_pointer = C.uintptr_t(p)
	}
	if t != deviceMemory {
		a.host_pointer = C.uintptr_t(p)
	}
	return 0
}

//export cudaMemGetInfo
func cudaMemGetInfo(free, total *uintptr) int32 {
	m := dev().mem
	*free, *total = uintptr(m.Limit()-m.Used()), uintptr(m.Limit())
	return 0
}

//export cudaMemAdvise
func cudaMemAdvise(ignored1, ignored2 uintptr, ignored3 int32, ignored4, ignored5 uintptr) int32 {
	return 0
}

//export cudaMemPrefetchAsync
func cudaMemPrefetchAsync(ignored1, ignored2, ignored3, ignored4, ignored5 uintptr) int32 { return 0 }

//export cudaStreamAttachMemAsync
func cudaStreamAttachMemAsync(ignored1, ignored2, ignored3 uintptr, ignored4 uint32) int32 { return 0 }

//export cudaGetSymbolAddress
func cudaGetSymbolAddress(p *uintptr, symbol uintptr) int32 {
	at, _, err := dev().place(symbol)
	*p = at
	return result("cudaGetSymbolAddress", err)
}

//export cudaGetSymbolSize
func cudaGetSymbolSize(bytes *uintptr, symbol uintptr) int32 {
	_, n, err := dev().place(symbol)
	*bytes = uintptr(n)
	return result("cudaGetSymbolSize", err)
}
