// Adapts CUDA's header to github.com/mumax/3/cuda/cu. From CUDA 13 on, the name cuCtxCreate
// means a function with four arguments, but the package calls the one with three. Name this
// directory before the directory of CUDA's header:
//
//	CGO_CFLAGS="-I$PWD/driver/mumax/include -I/path/to/cuda/include"
#include_next <cuda.h>
#if CUDA_VERSION >= 13000
#undef cuCtxCreate
#define cuCtxCreate cuCtxCreate_v2
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev);
#endif
