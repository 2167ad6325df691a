// A library to link programs with that use github.com/mumax/3/cuda/cu, on a
// machine without a driver: every function that the package calls is there and
// answers CUDA_ERROR_STUB_LIBRARY. Built with
//
//	cc -shared -Wl,-soname,libcuda.so.1 -o libcuda.so linkcuda.c
//
// the program loads the driver's own libcuda.so.1 where that is installed.
// The definitions are weak, so that a library for tests may have better ones.
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
