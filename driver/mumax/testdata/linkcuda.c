// A library for linking programs that use github.com/mumax/3/cuda/cu on a machine without
// a driver. It has every function that the package calls, and each returns
// CUDA_ERROR_STUB_LIBRARY. It is built with
//
//	cc -shared -Wl,-soname,libcuda.so.1 -o libcuda.so linkcuda.c
//
// A program linked with it loads the driver's own libcuda.so.1 if that is installed.
// The definitions are weak, so that a library for tests can replace them.
#define STUB(name) __attribute__((weak)) int name(void) { return 34; }

STUB(cuInit) STUB(cuDriverGetVersion)
STUB(cuDeviceGet) STUB(cuDeviceGetCount) STUB(cuDeviceGetName) STUB(cuDeviceGetAttribute)
STUB(cuDeviceGetProperties) STUB(cuDeviceComputeCapability) STUB(cuDeviceTotalMem) STUB(cuDeviceTotalMem_v2)
STUB(cuDeviceCanAccessPeer) STUB(cuCtxEnablePeerAccess) STUB(cuCtxDisablePeerAccess)
STUB(cuCtxCreate) STUB(cuCtxCreate_v2) STUB(cuCtxDestroy) STUB(cuCtxDestroy_v2)
STUB(cuCtxGetApiVersion) STUB(cuCtxGetCurrent) STUB(cuCtxGetDevice) STUB(cuCtxSetCurrent) STUB(cuCtxSynchronize)
STUB(cuStreamCreate) STUB(cuStreamDestroy) STUB(cuStreamDestroy_v2) STUB(cuStreamQuery) STUB(cuStreamSynchronize)
STUB(cuModuleLoad) STUB(cuModuleLoadData) STUB(cuModuleGetFunction)
STUB(cuFuncGetAttribute) STUB(cuLaunchKernel)
STUB(cuMemAlloc_v2) STUB(cuMemFree_v2) STUB(cuMemGetInfo_v2) STUB(cuMemGetAddressRange_v2)
STUB(cuMemAllocHost_v2) STUB(cuMemFreeHost) STUB(cuMemHostRegister) STUB(cuMemHostRegister_v2) STUB(cuMemHostUnregister)
STUB(cuMemcpy) STUB(cuMemcpyAsync) STUB(cuMemcpyPeer) STUB(cuMemcpyPeerAsync)
STUB(cuMemcpyHtoD_v2) STUB(cuMemcpyHtoDAsync_v2) STUB(cuMemcpyDtoH_v2) STUB(cuMemcpyDtoHAsync_v2)
STUB(cuMemcpyDtoD_v2) STUB(cuMemcpyDtoDAsync_v2)
STUB(cuMemsetD8_v2) STUB(cuMemsetD8Async) STUB(cuMemsetD32_v2) STUB(cuMemsetD32Async)
STUB(cuPointerGetAttribute)
