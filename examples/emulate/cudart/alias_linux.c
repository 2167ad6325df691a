// This file gives functions further names. A program that nvcc built with --default-stream per-thread
// calls functions whose names end in _ptsz or _ptds. A newer version of a driver's function often has
// the same arguments under another name.

#if defined(__x86_64__)
#define ALIAS(name, of) __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n\tjmp " #of "@PLT\n.size " #name ", .-" #name "\n")
#elif defined(__aarch64__)
#define ALIAS(name, of) __asm__(".text\n.globl " #name "\n.type " #name ", %function\n" #name ":\n\tb " #of "\n.size " #name ", .-" #name "\n")
#endif
#define PER_THREAD(name) ALIAS(name##_ptsz, name)
#define PER_THREAD_COPY(name) ALIAS(name##_ptds, name)

PER_THREAD(cudaLaunchKernel);
PER_THREAD(__cudaLaunchKernel);
PER_THREAD(cudaLaunchKernelExC);
PER_THREAD(cudaLaunchCooperativeKernel);
PER_THREAD(cudaLaunchHostFunc);
PER_THREAD(cudaMallocAsync);
PER_THREAD(cudaMallocFromPoolAsync);
PER_THREAD(cudaFreeAsync);
PER_THREAD(cudaMemcpyAsync);
PER_THREAD(cudaMemcpy2DAsync);
PER_THREAD(cudaMemcpy3DAsync);
PER_THREAD(cudaMemcpyToSymbolAsync);
PER_THREAD(cudaMemcpyFromSymbolAsync);
PER_THREAD(cudaMemsetAsync);
PER_THREAD(cudaMemset2DAsync);
PER_THREAD(cudaMemPrefetchAsync);
PER_THREAD(cudaEventRecord);
PER_THREAD(cudaEventRecordWithFlags);
PER_THREAD(cudaStreamAddCallback);
PER_THREAD(cudaStreamAttachMemAsync);
PER_THREAD(cudaStreamBeginCapture);
PER_THREAD(cudaStreamEndCapture);
PER_THREAD(cudaStreamGetFlags);
PER_THREAD(cudaStreamGetId);
PER_THREAD(cudaStreamGetPriority);
PER_THREAD(cudaStreamIsCapturing);
PER_THREAD(cudaStreamQuery);
PER_THREAD(cudaStreamSetAttribute);
PER_THREAD(cudaStreamSynchronize);
PER_THREAD(cudaStreamWaitEvent);
PER_THREAD(cudaGraphLaunch);
PER_THREAD(cudaGraphUpload);
PER_THREAD_COPY(cudaMemcpy);
PER_THREAD_COPY(cudaMemcpy2D);
PER_THREAD_COPY(cudaMemcpy3D);
PER_THREAD_COPY(cudaMemcpyToSymbol);
PER_THREAD_COPY(cudaMemcpyFromSymbol);
PER_THREAD_COPY(cudaMemset);
PER_THREAD_COPY(cudaMemset2D);
PER_THREAD_COPY(cudaMemset3D);
