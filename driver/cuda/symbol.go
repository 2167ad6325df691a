package cuda

// symbol is a function of the driver library. Its name includes the version suffix
// that the library exports.
type symbol uint8

const (
	symInit symbol = iota
	symDriverGetVersion
	symGetErrorName
	symGetErrorString
	symDeviceGetCount
	symDeviceGet
	symDeviceGetName
	symDeviceGetAttribute
	symDeviceGetPCIBusID
	symPrimaryCtxRetain
	symPrimaryCtxRelease
	symCtxSetCurrent
	symCtxSynchronize
	symLinkCreate
	symLinkAddData
	symLinkComplete
	symLinkDestroy
	symModuleLoadDataEx
	symModuleUnload
	symModuleGetFunction
	symFuncLoad
	symFuncGetAttribute
	symFuncSetAttribute
	symLaunchKernelEx
	symMemAlloc
	symMemFree
	symMemGetInfo
	symMemcpyHtoDAsync
	symMemcpyDtoHAsync
	symMemcpyDtoDAsync
	symMemsetD32Async
	symStreamCreate
	symStreamDestroy
	symStreamQuery
	symStreamSynchronize
	symStreamWaitEvent
	symEventCreate
	symEventDestroy
	symEventRecord
	symEventQuery
	symEventSynchronize
	symEventElapsedTime
	symMemAllocAsync
	symMemFreeAsync
	symStreamBeginCapture
	symStreamEndCapture
	symStreamIsCapturing
	symGraphInstantiate
	symGraphLaunch
	symGraphGetNodes
	symGraphDestroy
	symGraphExecDestroy
	symTensorMapEncodeTiled
	symMaxActiveClusters
	symMaxActiveBlocks
	symDeviceCanAccessPeer
	symCtxEnablePeerAccess
	symMemGetAddressRange
	symPointerGetAttribute
	symIpcGetMemHandle
	symIpcOpenMemHandle
	symIpcCloseMemHandle
	symMemHostRegister
	symMemHostUnregister
	symHostDevicePointer
	symStreamWriteValue
	symStreamWaitValue
	symbolCount
)

// symbols lists the name of each function. Some functions are not needed to open a device. For
// these it also lists the feature that needs the function.
var symbols = [symbolCount]struct{ name, neededFor string }{
	symInit:                 {"cuInit", ""},
	symDriverGetVersion:     {"cuDriverGetVersion", ""},
	symGetErrorName:         {"cuGetErrorName", ""},
	symGetErrorString:       {"cuGetErrorString", ""},
	symDeviceGetCount:       {"cuDeviceGetCount", ""},
	symDeviceGet:            {"cuDeviceGet", ""},
	symDeviceGetName:        {"cuDeviceGetName", ""},
	symDeviceGetAttribute:   {"cuDeviceGetAttribute", ""},
	symDeviceGetPCIBusID:    {"cuDeviceGetPCIBusId", "the address on the PCI bus"},
	symPrimaryCtxRetain:     {"cuDevicePrimaryCtxRetain", ""},
	symPrimaryCtxRelease:    {"cuDevicePrimaryCtxRelease_v2", ""},
	symCtxSetCurrent:        {"cuCtxSetCurrent", ""},
	symCtxSynchronize:       {"cuCtxSynchronize", ""},
	symLinkCreate:           {"cuLinkCreate_v2", ""},
	symLinkAddData:          {"cuLinkAddData_v2", ""},
	symLinkComplete:         {"cuLinkComplete", ""},
	symLinkDestroy:          {"cuLinkDestroy", ""},
	symModuleLoadDataEx:     {"cuModuleLoadDataEx", ""},
	symModuleUnload:         {"cuModuleUnload", ""},
	symModuleGetFunction:    {"cuModuleGetFunction", ""},
	symFuncLoad:             {"cuFuncLoad", "loading kernels early"},
	symFuncGetAttribute:     {"cuFuncGetAttribute", ""},
	symFuncSetAttribute:     {"cuFuncSetAttribute", ""},
	symLaunchKernelEx:       {"cuLaunchKernelEx", ""},
	symMemAlloc:             {"cuMemAlloc_v2", ""},
	symMemFree:              {"cuMemFree_v2", ""},
	symMemGetInfo:           {"cuMemGetInfo_v2", ""},
	symMemcpyHtoDAsync:      {"cuMemcpyHtoDAsync_v2", ""},
	symMemcpyDtoHAsync:      {"cuMemcpyDtoHAsync_v2", ""},
	symMemcpyDtoDAsync:      {"cuMemcpyDtoDAsync_v2", ""},
	symMemsetD32Async:       {"cuMemsetD32Async", ""},
	symStreamCreate:         {"cuStreamCreate", ""},
	symStreamDestroy:        {"cuStreamDestroy_v2", ""},
	symStreamQuery:          {"cuStreamQuery", ""},
	symStreamSynchronize:    {"cuStreamSynchronize", ""},
	symStreamWaitEvent:      {"cuStreamWaitEvent", ""},
	symEventCreate:          {"cuEventCreate", ""},
	symEventDestroy:         {"cuEventDestroy_v2", ""},
	symEventRecord:          {"cuEventRecord", ""},
	symEventQuery:           {"cuEventQuery", ""},
	symEventSynchronize:     {"cuEventSynchronize", ""},
	symEventElapsedTime:     {"cuEventElapsedTime", ""},
	symMemAllocAsync:        {"cuMemAllocAsync", "stream-ordered memory"},
	symMemFreeAsync:         {"cuMemFreeAsync", "stream-ordered memory"},
	symStreamBeginCapture:   {"cuStreamBeginCapture_v2", "graph capture"},
	symStreamEndCapture:     {"cuStreamEndCapture", "graph capture"},
	symStreamIsCapturing:    {"cuStreamIsCapturing", "graph capture"},
	symGraphInstantiate:     {"cuGraphInstantiateWithFlags", "graph capture"},
	symGraphLaunch:          {"cuGraphLaunch", "graphs"},
	symGraphGetNodes:        {"cuGraphGetNodes", "graphs"},
	symGraphDestroy:         {"cuGraphDestroy", "graphs"},
	symGraphExecDestroy:     {"cuGraphExecDestroy", "graphs"},
	symTensorMapEncodeTiled: {"cuTensorMapEncodeTiled", "tensor maps"},
	symMaxActiveClusters:    {"cuOccupancyMaxActiveClusters", "the occupancy of clusters"},
	symMaxActiveBlocks:      {"cuOccupancyMaxActiveBlocksPerMultiprocessor", "occupancy"},
	symDeviceCanAccessPeer:  {"cuDeviceCanAccessPeer", "access to other GPUs"},
	symCtxEnablePeerAccess:  {"cuCtxEnablePeerAccess", "access to other GPUs"},
	symMemGetAddressRange:   {"cuMemGetAddressRange_v2", "memory of other processes"},
	symPointerGetAttribute:  {"cuPointerGetAttribute", "memory of other processes"},
	symIpcGetMemHandle:      {"cuIpcGetMemHandle", "memory of other processes"},
	symIpcOpenMemHandle:     {"cuIpcOpenMemHandle_v2", "memory of other processes"},
	symIpcCloseMemHandle:    {"cuIpcCloseMemHandle", "memory of other processes"},
	symMemHostRegister:      {"cuMemHostRegister_v2", "memory of other processes"},
	symMemHostUnregister:    {"cuMemHostUnregister", "memory of other processes"},
	symHostDevicePointer:    {"cuMemHostGetDevicePointer_v2", "memory of other processes"},
	symStreamWriteValue:     {"cuStreamWriteValue32_v2", "memory of other processes"},
	symStreamWaitValue:      {"cuStreamWaitValue32_v2", "memory of other processes"},
}

// String returns the name that the library exports.
func (s symbol) String() string { return symbols[s].name }

// symbolOf returns the function with that name.
func symbolOf(name string) (symbol, bool) {
	for s := range symbolCount {
		if symbols[s].name == name {
			return s, true
		}
	}
	return 0, false
}
