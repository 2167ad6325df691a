//go:build cgo && linux

package main

import "C"

// The driver's functions about memory, streams and events.

//export cuMemAlloc_v2
func cuMemAlloc_v2(p *uintptr, bytes uintptr) int32 {
	var err error
	if *p, err = dev().alloc(bytes); err == nil && bytes == 0 {
		err = invalidValue.plain()
	}
	return status("cuMemAlloc", err)
}

//export cuMemFree_v2
func cuMemFree_v2(p uintptr) int32 { return status("cuMemFree", dev().free(p)) }

//export cuMemAllocAsync
func cuMemAllocAsync(p *uintptr, bytes, stream uintptr) int32 {
	return status("cuMemAllocAsync", dev().allocAsync(p, bytes, stream))
}

//export cuMemFreeAsync
func cuMemFreeAsync(p, stream uintptr) int32 { return cudaFreeAsync(p, stream) }

//export cuMemAllocManaged
func cuMemAllocManaged(p *uintptr, bytes uintptr, flags uint32) int32 {
	return cudaMallocManaged(p, bytes, flags)
}

//export cuMemAllocHost_v2
func cuMemAllocHost_v2(p *uintptr, bytes uintptr) int32 { return cudaHostAlloc(p, bytes, 0) }

//export cuMemHostAlloc
func cuMemHostAlloc(p *uintptr, bytes uintptr, flags uint32) int32 {
	return cudaHostAlloc(p, bytes, flags)
}

//export cuMemFreeHost
func cuMemFreeHost(p uintptr) int32 { return status("cuMemFreeHost", dev().unpin(p, true)) }

//export cuMemHostGetDevicePointer_v2
func cuMemHostGetDevicePointer_v2(device *uintptr, host uintptr, flags uint32) int32 {
	return cudaHostGetDevicePointer(device, host, flags)
}

//export cuMemGetInfo_v2
func cuMemGetInfo_v2(free, total *uintptr) int32 { return cudaMemGetInfo(free, total) }

//export cuMemcpy
func cuMemcpy(to, from, n uintptr) int32 {
	return status("cuMemcpy", dev().copy(to, from, n, anyDirection, 0))
}

//export cuMemcpyAsync
func cuMemcpyAsync(to, from, n, stream uintptr) int32 {
	return status("cuMemcpyAsync", dev().copy(to, from, n, anyDirection, stream))
}

//export cuMemcpyHtoD_v2
func cuMemcpyHtoD_v2(to, from, n uintptr) int32 {
	return status("cuMemcpyHtoD", dev().copy(to, from, n, hostToDevice, 0))
}

//export cuMemcpyHtoDAsync_v2
func cuMemcpyHtoDAsync_v2(to, from, n, stream uintptr) int32 {
	return status("cuMemcpyHtoDAsync", dev().copy(to, from, n, hostToDevice, stream))
}

//export cuMemcpyDtoH_v2
func cuMemcpyDtoH_v2(to, from, n uintptr) int32 {
	return status("cuMemcpyDtoH", dev().copy(to, from, n, deviceToHost, 0))
}

//export cuMemcpyDtoHAsync_v2
func cuMemcpyDtoHAsync_v2(to, from, n, stream uintptr) int32 {
	return status("cuMemcpyDtoHAsync", dev().copy(to, from, n, deviceToHost, stream))
}

//export cuMemcpyDtoD_v2
func cuMemcpyDtoD_v2(to, from, n uintptr) int32 {
	return status("cuMemcpyDtoD", dev().copy(to, from, n, deviceToDevice, 0))
}

//export cuMemcpyDtoDAsync_v2
func cuMemcpyDtoDAsync_v2(to, from, n, stream uintptr) int32 {
	return status("cuMemcpyDtoDAsync", dev().copy(to, from, n, deviceToDevice, stream))
}

func (d *device) fillMemory(op string, to uintptr, v uint32, element, n, stream uintptr) int32 {
	return status(op, d.queue(stream, d.fillNode(block{at: to}, v, element, n, 1, 1)))
}

//export cuMemsetD8_v2
func cuMemsetD8_v2(to uintptr, v uint8, n uintptr) int32 {
	return dev().fillMemory("cuMemsetD8", to, uint32(v), 1, n, 0)
}

//export cuMemsetD8Async
func cuMemsetD8Async(to uintptr, v uint8, n, stream uintptr) int32 {
	return dev().fillMemory("cuMemsetD8Async", to, uint32(v), 1, n, stream)
}

//export cuMemsetD16_v2
func cuMemsetD16_v2(to uintptr, v uint16, n uintptr) int32 {
	return dev().fillMemory("cuMemsetD16", to, uint32(v), 2, n, 0)
}

//export cuMemsetD32_v2
func cuMemsetD32_v2(to uintptr, v uint32, n uintptr) int32 {
	return dev().fillMemory("cuMemsetD32", to, v, 4, n, 0)
}

//export cuMemsetD32Async
func cuMemsetD32Async(to uintptr, v uint32, n, stream uintptr) int32 {
	return dev().fillMemory("cuMemsetD32Async", to, v, 4, n, stream)
}

//export cuMemAllocPitch_v2
func cuMemAllocPitch_v2(p, pitch *uintptr, width, height uintptr, _ uint32) int32 {
	return cudaMallocPitch(p, pitch, width, height)
}

// Attributes of pointers.
const (
	pointerContext = 1
	pointerType    = 2
	pointerDevice  = 3
	pointerHost    = 4
)

//export cuPointerGetAttribute
func cuPointerGetAttribute(to uintptr, a int32, p uintptr) int32 {
	t := dev().typeOf(p)
	switch {
	case t == unregisteredMemory:
		return status("cuPointerGetAttribute", invalidValue.plain())
	case a == pointerContext:
		put(to, uintptr(onlyContext))
	case a == pointerType && t == hostMemory:
		put(to, int32(1))
	case a == pointerType:
		put(to, int32(2))
	case a == pointerDevice, a == pointerHost && t != deviceMemory:
		put(to, p)
	default:
		return status("cuPointerGetAttribute", failed(notSupported, "attribute %d of %#x is not emulated", a, p))
	}
	return 0
}

//export cuStreamCreate
func cuStreamCreate(p *uintptr, flags uint32) int32 { return newStream(p, flags, 0) }

//export cuStreamCreateWithPriority
func cuStreamCreateWithPriority(p *uintptr, flags uint32, priority int32) int32 {
	return cudaStreamCreateWithPriority(p, flags, priority)
}

//export cuStreamDestroy_v2
func cuStreamDestroy_v2(h uintptr) int32 {
	return status("cuStreamDestroy", drop(dev(), dev().streams, h, "stream"))
}

//export cuStreamSynchronize
func cuStreamSynchronize(h uintptr) int32 { return status("cuStreamSynchronize", dev().finish(h)) }

//export cuStreamQuery
func cuStreamQuery(h uintptr) int32 { return cudaStreamQuery(h) }

//export cuStreamWaitEvent
func cuStreamWaitEvent(h, event uintptr, _ uint32) int32 {
	return status("cuStreamWaitEvent", dev().wait(h, event))
}

//export cuEventCreate
func cuEventCreate(p *uintptr, flags uint32) int32 { return cudaEventCreateWithFlags(p, flags) }

//export cuEventDestroy_v2
func cuEventDestroy_v2(h uintptr) int32 {
	return status("cuEventDestroy", drop(dev(), dev().events, h, "event"))
}

//export cuEventRecord
func cuEventRecord(h, stream uintptr) int32 { return status("cuEventRecord", dev().record(h, stream)) }

//export cuEventQuery
func cuEventQuery(h uintptr) int32 { return cudaEventQuery(h) }

//export cuEventSynchronize
func cuEventSynchronize(h uintptr) int32 { return cudaEventSynchronize(h) }

//export cuEventElapsedTime_v2
func cuEventElapsedTime_v2(ms *float32, from, to uintptr) int32 {
	return cudaEventElapsedTime(ms, from, to)
}
