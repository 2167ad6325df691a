//go:build cgo && linux

package main

import (
	"fmt"
	"strings"
)

// layout12 and layout13 list the fields of cudaDeviceProp of CUDA 12 and 13 without the reserved
// ones at the end. A field is "name type count". The type c is char, i is int, and z is size_t.
var layout12 = strings.NewReplacer("totalConstMem", "clockRate i 1,totalConstMem", "multiProcessorCount", "deviceOverlap i 1,multiProcessorCount",
	"integrated", "kernelExecTimeoutEnabled i 1,integrated", "maxTexture1D i 1,maxTexture1DMipmap i 1", "computeMode i 1,maxTexture1D i 1,maxTexture1DMipmap i 1,maxTexture1DLinear i 1",
	"memoryBusWidth", "memoryClockRate i 1,memoryBusWidth", "pageableMemoryAccess i 1", "singleToDoublePrecisionPerfRatio i 1,pageableMemoryAccess i 1",
	"cooperativeLaunch i 1", "cooperativeLaunch i 1,cooperativeMultiDeviceLaunch i 1").Replace(layout13)

const layout13 = "name c 256,uuid c 16,luid c 8,luidDeviceNodeMask i 1,totalGlobalMem z 1,sharedMemPerBlock z 1,regsPerBlock i 1,warpSize i 1,memPitch z 1," +
	"maxThreadsPerBlock i 1,maxThreadsDim i 3,maxGridSize i 3,totalConstMem z 1,major i 1,minor i 1,textureAlignment z 1,texturePitchAlignment z 1," +
	"multiProcessorCount i 1,integrated i 1,canMapHostMemory i 1,maxTexture1D i 1,maxTexture1DMipmap i 1,maxTexture2D i 2,maxTexture2DMipmap i 2,maxTexture2DLinear i 3," +
	"maxTexture2DGather i 2,maxTexture3D i 3,maxTexture3DAlt i 3,maxTextureCubemap i 1,maxTexture1DLayered i 2,maxTexture2DLayered i 3,maxTextureCubemapLayered i 2," +
	"maxSurface1D i 1,maxSurface2D i 2,maxSurface3D i 3,maxSurface1DLayered i 2,maxSurface2DLayered i 3,maxSurfaceCubemap i 1,maxSurfaceCubemapLayered i 2," +
	"surfaceAlignment z 1,concurrentKernels i 1,ECCEnabled i 1,pciBusID i 1,pciDeviceID i 1,pciDomainID i 1,tccDriver i 1,asyncEngineCount i 1,unifiedAddressing i 1," +
	"memoryBusWidth i 1,l2CacheSize i 1,persistingL2CacheMaxSize i 1,maxThreadsPerMultiProcessor i 1,streamPrioritiesSupported i 1,globalL1CacheSupported i 1," +
	"localL1CacheSupported i 1,sharedMemPerMultiprocessor z 1,regsPerMultiprocessor i 1,managedMemory i 1,isMultiGpuBoard i 1,multiGpuBoardGroupID i 1," +
	"hostNativeAtomicSupported i 1,pageableMemoryAccess i 1,concurrentManagedAccess i 1,computePreemptionSupported i 1,canUseHostPointerForRegisteredMem i 1," +
	"cooperativeLaunch i 1,sharedMemPerBlockOptin z 1,pageableMemoryAccessUsesHostPageTables i 1,directManagedMemAccessFromHost i 1,maxBlocksPerMultiProcessor i 1," +
	"accessPolicyMaxWindowSize i 1,reservedSharedMemPerBlock z 1,hostRegisterSupported i 1,sparseCudaArraySupported i 1,hostRegisterReadOnlySupported i 1," +
	"timelineSemaphoreInteropSupported i 1,memoryPoolsSupported i 1,gpuDirectRDMASupported i 1,gpuDirectRDMAFlushWritesOptions i 1,gpuDirectRDMAWritesOrdering i 1," +
	"memoryPoolSupportedHandleTypes i 1,deferredMappingCudaArraySupported i 1,ipcEventSupported i 1,clusterLaunch i 1,unifiedFunctionPointers i 1"

// reservedInts is the number of ints after the listed fields, in both versions.
const reservedInts = 63

// properties returns the values of the fields of cudaDeviceProp that are not 0.
func (d *device) properties() map[string][]int {
	t := d.target
	return map[string][]int{
		"totalGlobalMem": {memoryBytes}, "sharedMemPerBlock": {defaultShared}, "regsPerBlock": {t.RegistersPerSM}, "warpSize": {32}, "memPitch": {1<<31 - 1},
		"maxThreadsPerBlock": {1024}, "maxThreadsDim": {1024, 1024, 64}, "maxGridSize": {1<<31 - 1, 65535, 65535}, "clockRate": {t.ClockKHz}, "totalConstMem": {64 << 10},
		"major": {t.Major}, "minor": {t.Minor}, "textureAlignment": {512}, "texturePitchAlignment": {32}, "multiProcessorCount": {t.SMs}, "canMapHostMemory": {1},
		"deviceOverlap": {1}, "surfaceAlignment": {512}, "concurrentKernels": {1}, "ECCEnabled": {1}, "pciBusID": {1}, "asyncEngineCount": {3}, "unifiedAddressing": {1},
		"memoryClockRate": {t.MemoryClockKHz}, "memoryBusWidth": {t.MemoryBusBits}, "l2CacheSize": {t.L2Bytes}, "maxThreadsPerMultiProcessor": {2048},
		"streamPrioritiesSupported": {1}, "globalL1CacheSupported": {1}, "localL1CacheSupported": {1}, "sharedMemPerMultiprocessor": {t.SharedBytesPerSM},
		"regsPerMultiprocessor": {t.RegistersPerSM}, "managedMemory": {1}, "singleToDoublePrecisionPerfRatio": {2}, "concurrentManagedAccess": {1},
		"computePreemptionSupported": {1}, "canUseHostPointerForRegisteredMem": {1}, "cooperativeLaunch": {1}, "sharedMemPerBlockOptin": {t.SharedBytesPerCTA},
		"maxBlocksPerMultiProcessor": {32}, "reservedSharedMemPerBlock": {1 << 10}, "hostRegisterSupported": {1}, "memoryPoolsSupported": {1}, "clusterLaunch": {1},
		"unifiedFunctionPointers": {1},
	}
}

// fields calls visit for each field of a layout, with the field's offset in bytes. It returns the
// size of the struct.
func fields(layout string, visit func(name, kind string, count, offset int)) (bytes int) {
	sizes := map[string]int{"c": 1, "i": 4, "z": 8}
	at := 0
	for f := range strings.SplitSeq(layout, ",") {
		var name, kind string
		var count int
		fmt.Sscan(f, &name, &kind, &count) // the layouts are constants
		size := sizes[kind]
		at = (at + size - 1) / size * size
		visit(name, kind, count, at)
		at += size * count
	}
	return (at + 4*reservedInts + 7) / 8 * 8
}

// fill writes cudaDeviceProp at an address of the program.
func (d *device) fill(to uintptr, layout string) {
	clear(hostBytes(to, fields(layout, func(string, string, int, int) {})))
	values := d.properties()
	fields(layout, func(name, kind string, count, offset int) {
		if name == "name" {
			copy(hostBytes(to+uintptr(offset), count), d.target.Name)
		}
		for i, v := range values[name] {
			if kind == "z" {
				put(to+uintptr(offset+8*i), uint64(v))
			} else {
				put(to+uintptr(offset+4*i), int32(v))
			}
		}
	})
}

func properties(to uintptr, device int32, layout string) int32 {
	if device != 0 {
		return result("cudaGetDeviceProperties", failed(invalidDevice, "device %d, there is device 0 alone", device))
	}
	dev().fill(to, layout)
	return 0
}

// attributes maps the numbers of cudaDeviceAttr to fields of cudaDeviceProp. If the field is an
// array, index is the attribute's element.
var attributes = map[int32]struct {
	field string
	index int
}{
	1: {"maxThreadsPerBlock", 0}, 2: {"maxThreadsDim", 0}, 3: {"maxThreadsDim", 1}, 4: {"maxThreadsDim", 2}, 5: {"maxGridSize", 0}, 6: {"maxGridSize", 1}, 7: {"maxGridSize", 2},
	8: {"sharedMemPerBlock", 0}, 9: {"totalConstMem", 0}, 10: {"warpSize", 0}, 11: {"memPitch", 0}, 12: {"regsPerBlock", 0}, 13: {"clockRate", 0}, 14: {"textureAlignment", 0},
	15: {"deviceOverlap", 0}, 16: {"multiProcessorCount", 0}, 17: {"kernelExecTimeoutEnabled", 0}, 18: {"integrated", 0}, 19: {"canMapHostMemory", 0}, 20: {"computeMode", 0},
	30: {"surfaceAlignment", 0}, 31: {"concurrentKernels", 0}, 32: {"ECCEnabled", 0}, 33: {"pciBusID", 0}, 34: {"pciDeviceID", 0}, 35: {"tccDriver", 0}, 36: {"memoryClockRate", 0},
	37: {"memoryBusWidth", 0}, 38: {"l2CacheSize", 0}, 39: {"maxThreadsPerMultiProcessor", 0}, 40: {"asyncEngineCount", 0}, 41: {"unifiedAddressing", 0}, 50: {"pciDomainID", 0},
	51: {"texturePitchAlignment", 0}, 75: {"major", 0}, 76: {"minor", 0}, 78: {"streamPrioritiesSupported", 0}, 79: {"globalL1CacheSupported", 0}, 80: {"localL1CacheSupported", 0},
	81: {"sharedMemPerMultiprocessor", 0}, 82: {"regsPerMultiprocessor", 0}, 83: {"managedMemory", 0}, 84: {"isMultiGpuBoard", 0}, 85: {"multiGpuBoardGroupID", 0},
	86: {"hostNativeAtomicSupported", 0}, 87: {"singleToDoublePrecisionPerfRatio", 0}, 88: {"pageableMemoryAccess", 0}, 89: {"concurrentManagedAccess", 0},
	90: {"computePreemptionSupported", 0}, 91: {"canUseHostPointerForRegisteredMem", 0}, 95: {"cooperativeLaunch", 0}, 97: {"sharedMemPerBlockOptin", 0},
	99: {"hostRegisterSupported", 0}, 100: {"pageableMemoryAccessUsesHostPageTables", 0}, 101: {"directManagedMemAccessFromHost", 0}, 106: {"maxBlocksPerMultiProcessor", 0},
	111: {"reservedSharedMemPerBlock", 0}, 115: {"memoryPoolsSupported", 0}, 120: {"clusterLaunch", 0}, 123: {"unifiedFunctionPointers", 0},
}

// attribute returns an attribute of the device. It returns 0 if the table lacks the attribute: the
// device then lacks the feature.
func (d *device) attribute(a int32) int32 {
	f, ok := attributes[a]
	if !ok {
		return 0
	}
	v := d.properties()[f.field]
	if len(v) == 0 {
		return 0
	}
	return int32(v[f.index])
}
