//go:build cgo && linux

package main

// #include "cuda.h"
import "C"

import (
	"sonicmoe/ptx/emu"
)

// Attributes of functions that a program can set.
const (
	setDynamicShared = 8
	setCarveout      = 9
	setMustCluster   = 10
	setClusterWidth  = 11
	setClusterHeight = 12
	setClusterDepth  = 13
	setNonPortable   = 14
)

// set sets an attribute of a function.
func (d *device) set(h uintptr, attribute, value int32) error {
	f, err := d.function(h)
	if err != nil {
		return err
	}
	k, err := f.decoded()
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch attribute {
	case setDynamicShared:
		if most := d.target.SharedBytesPerCTA - k.StaticSharedBytes(); value < 0 || int(value) > most {
			return failed(invalidValue, "kernel %s: %d bytes of dynamic shared memory, want at most %d", f.name, value, most)
		}
		f.dynamic = int(value)
	case setCarveout:
		f.carveout = value
	case setMustCluster:
		f.mustSpecify = value != 0
	case setClusterWidth, setClusterHeight, setClusterDepth:
		f.needsCluster[attribute-setClusterWidth] = int(value)
	case setNonPortable:
		f.nonPortable = value != 0
	}
	return nil
}

//export cudaFuncSetAttribute
func cudaFuncSetAttribute(h uintptr, attribute, value int32) int32 {
	return result("cudaFuncSetAttribute", dev().set(h, attribute, value))
}

//export cudaFuncSetCacheConfig
func cudaFuncSetCacheConfig(h uintptr, _ int32) int32 {
	_, err := dev().function(h)
	return result("cudaFuncSetCacheConfig", err)
}

//export cudaFuncSetSharedMemConfig
func cudaFuncSetSharedMemConfig(h uintptr, _ int32) int32 { return cudaFuncSetCacheConfig(h, 0) }

//export cudaFuncGetAttributes
func cudaFuncGetAttributes(a *C.func_attributes, h uintptr) int32 {
	d := dev()
	f, err := d.function(h)
	if err != nil {
		return result("cudaFuncGetAttributes", err)
	}
	k, err := f.decoded()
	if err != nil {
		return result("cudaFuncGetAttributes", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	cluster, flag := k.Cluster(), int32(0)
	if f.nonPortable {
		flag = 1
	}
	*a = C.func_attributes{
		shared: C.size_t(k.StaticSharedBytes()), threads: C.int32_t(k.MaxThreads()), registers: C.int32_t(registers(k)),
		ptx: C.int32_t(90), binary: C.int32_t(90), dynamic: C.int32_t(max(f.dynamic, defaultShared-k.StaticSharedBytes())), carveout: C.int32_t(f.carveout),
		cluster: [3]C.int32_t{C.int32_t(cluster[0]), C.int32_t(cluster[1]), C.int32_t(cluster[2])}, non_portable: C.int32_t(flag),
	}
	return 0
}

// registers returns the number of registers that the library reports for a thread. The emulator
// allocates no registers. The number is the one that the launch bounds allow, but at most 64.
func registers(k *emu.Kernel) int { return min(k.Registers(), 64) }

// resident returns the number of CTAs that run on a multiprocessor at the same time.
func (d *device) resident(k *emu.Kernel, threads, dynamic int) int {
	const threadsPerSM, ctasPerSM, reserved = 2048, 32, 1 << 10
	if threads < 1 || threads > k.MaxThreads() {
		return 0
	}
	threads = (threads + 31) / 32 * 32
	n := min(ctasPerSM, threadsPerSM/threads, d.target.RegistersPerSM/(registers(k)*threads))
	return min(n, d.target.SharedBytesPerSM/(k.StaticSharedBytes()+dynamic+reserved))
}

func (d *device) occupancy(h uintptr, threads int32, dynamic uintptr) (int32, error) {
	f, err := d.function(h)
	if err != nil {
		return 0, err
	}
	k, err := f.decoded()
	if err != nil {
		return 0, err
	}
	return int32(d.resident(k, int(threads), int(dynamic))), nil
}

//export cudaOccupancyMaxActiveBlocksPerMultiprocessor
func cudaOccupancyMaxActiveBlocksPerMultiprocessor(n *int32, h uintptr, threads int32, dynamic uintptr) int32 {
	count, err := dev().occupancy(h, threads, dynamic)
	*n = count
	return result("cudaOccupancyMaxActiveBlocksPerMultiprocessor", err)
}

//export cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
func cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n *int32, h uintptr, threads int32, dynamic uintptr, _ uint32) int32 {
	return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, h, threads, dynamic)
}

//export cudaOccupancyAvailableDynamicSMemPerBlock
func cudaOccupancyAvailableDynamicSMemPerBlock(bytes *uintptr, h uintptr, ctas, _ int32) int32 {
	d := dev()
	f, err := d.function(h)
	if err == nil {
		k, e := f.decoded()
		if err = e; err == nil {
			*bytes = uintptr(max(0, d.target.SharedBytesPerSM/max(int(ctas), 1)-1<<10-k.StaticSharedBytes()))
		}
	}
	return result("cudaOccupancyAvailableDynamicSMemPerBlock", err)
}

// clusters returns the number of clusters that run on the device at the same time.
func (d *device) clusters(h uintptr, c *C.launch_config) (int32, error) {
	o, err := d.newOrder(h, [3]int{1, 1, 1}, dims(c.block), uintptr(c.shared))
	if err != nil {
		return 0, err
	}
	for i := range uintptr(c.count) {
		o.attribute((*C.launch_attribute)(at(uintptr(ptrOf(c.attributes)) + i*C.sizeof_launch_attribute)))
	}
	ctas := max(o.cluster[0], 1) * max(o.cluster[1], 1) * max(o.cluster[2], 1)
	return int32(d.target.SMs * d.resident(o.kernel, o.block[0]*o.block[1]*o.block[2], o.shared) / ctas), nil
}

//export cudaOccupancyMaxActiveClusters
func cudaOccupancyMaxActiveClusters(n *int32, h uintptr, c *C.launch_config) int32 {
	count, err := dev().clusters(h, c)
	*n = count
	return result("cudaOccupancyMaxActiveClusters", err)
}

//export cudaOccupancyMaxPotentialClusterSize
func cudaOccupancyMaxPotentialClusterSize(n *int32, h uintptr, _ *C.launch_config) int32 {
	f, err := dev().function(h)
	if err == nil {
		if *n = 8; f.nonPortable {
			*n = 16
		}
	}
	return result("cudaOccupancyMaxPotentialClusterSize", err)
}
