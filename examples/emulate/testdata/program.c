// A program as nvcc makes it: a fat binary, its registration before main, and launches by host
// functions. The test writes the fat binary to fat.h. With -DSTATIC the program has a
// runtime of its own, whose functions all fail.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fat.h"

typedef struct { uint32_t x, y, z; } dim3;
typedef struct { int32_t id; char pad[4]; union { char bytes[64]; int32_t number; dim3 dims; } value; } attribute;
typedef struct { dim3 grid, block; size_t shared; void *stream; attribute *attributes; uint32_t count; } config;

#ifdef STATIC
// Each function is long enough to be replaced, like the functions of CUDA's static runtime.
#define RUNTIME(type, name, arguments) __attribute__((noipa)) type name arguments { puts("the program's own " #name); abort(); }
#else
#define RUNTIME(type, name, arguments) type name arguments;
#endif
RUNTIME(void **, __cudaRegisterFatBinary, (void *wrapper))
RUNTIME(void, __cudaRegisterFatBinaryEnd, (void **handle))
RUNTIME(void, __cudaRegisterFunction, (void **handle, const void *host_function, const char *name, const char *device, int limit, void *tid, void *bid, void *block, void *grid, int *warp))
RUNTIME(void, __cudaRegisterVar, (void **handle, void *host, const char *name, const char *device, int ext, size_t size, int constant, int global))
RUNTIME(void, __cudaRegisterManagedVar, (void **handle, void **to, void *host, const char *name, int ext, size_t size, int constant, int global))
RUNTIME(char, __cudaInitModule, (void **handle))
RUNTIME(unsigned, __cudaPushCallConfiguration, (dim3 grid, dim3 block, size_t shared, void *stream))
RUNTIME(int, __cudaPopCallConfiguration, (dim3 *grid, dim3 *block, size_t *shared, void **stream))
RUNTIME(int, cudaLaunchKernel, (const void *host_function, dim3 grid, dim3 block, void **args, size_t shared, void *stream))
RUNTIME(int, cudaLaunchKernelExC, (const config *c, const void *host_function, void **args))
RUNTIME(int, cudaMalloc, (void **p, size_t n))
RUNTIME(int, cudaMallocManaged, (void **p, size_t n, unsigned flags))
RUNTIME(int, cudaHostAlloc, (void **p, size_t n, unsigned flags))
RUNTIME(int, cudaFree, (void *p))
RUNTIME(int, cudaFreeHost, (void *p))
RUNTIME(int, cudaMemcpy, (void *to, const void *from, size_t n, int kind))
RUNTIME(int, cudaMemcpyAsync, (void *to, const void *from, size_t n, int kind, void *stream))
RUNTIME(int, cudaMemcpy2D, (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind))
RUNTIME(int, cudaMemset, (void *to, int value, size_t n))
RUNTIME(int, cudaMemcpyToSymbol, (const void *symbol, const void *from, size_t n, size_t offset, int kind))
RUNTIME(int, cudaMemcpyFromSymbol, (void *to, const void *symbol, size_t n, size_t offset, int kind))
RUNTIME(int, cudaDeviceSynchronize, (void))
RUNTIME(int, cudaGetLastError, (void))
RUNTIME(const char *, cudaGetErrorName, (int code))
RUNTIME(int, cudaStreamCreate, (void **s))
RUNTIME(int, cudaStreamBeginCapture, (void *s, int mode))
RUNTIME(int, cudaStreamEndCapture, (void *s, void **g))
RUNTIME(int, cudaStreamWaitEvent, (void *s, void *e, unsigned flags))
RUNTIME(int, cudaEventCreate, (void **e))
RUNTIME(int, cudaEventRecord, (void *e, void *s))
RUNTIME(int, cudaEventElapsedTime, (float *ms, void *from, void *to))
RUNTIME(int, cudaGraphInstantiate, (void **x, void *g, void *a, void *b, size_t n))
RUNTIME(int, cudaGraphGetNodes, (void *g, void **nodes, size_t *n))
RUNTIME(int, cudaGraphLaunch, (void *x, void *s))
RUNTIME(int, cudaGetDriverEntryPoint, (const char *name, void **f, unsigned long long flags, int *state))

#define CHECK(condition) do { if (!(condition)) { printf("line %d: %s\n", __LINE__, #condition); exit(1); } } while (0)
#define OK(call) do { int code = (call); if (code) { printf("line %d: %s is %d\n", __LINE__, #call, code); exit(1); } } while (0)

static char add, late, outside, box, touch; // the kernels' host functions
static unsigned *shared_count, shared_shadow; // a managed variable: its address, and the symbol
static void **module;
static float scale;
static unsigned calls;
static struct { int magic, version; const void *data; void *rest; } wrapper = {0x466243b1, 1, fat, NULL};

__attribute__((constructor)) static void registers(void)
{
	void **handle = __cudaRegisterFatBinary(&wrapper);
	__cudaRegisterFunction(handle, &add, "add", "add", -1, 0, 0, 0, 0, 0);
	__cudaRegisterFunction(handle, &late, "late", "late", -1, 0, 0, 0, 0, 0);
	__cudaRegisterFunction(handle, &outside, "outside", "outside", -1, 0, 0, 0, 0, 0);
	__cudaRegisterFunction(handle, &box, "box", "box", -1, 0, 0, 0, 0, 0);
	__cudaRegisterFunction(handle, &touch, "touch", "touch", -1, 0, 0, 0, 0, 0);
	__cudaRegisterManagedVar(handle, (void **)&shared_count, &shared_shadow, "shared_count", 0, 4, 0, 0);
	module = handle;
	__cudaRegisterVar(handle, &scale, "scale", "scale", 0, 4, 1, 0);
	__cudaRegisterVar(handle, &calls, "calls", "calls", 0, 4, 0, 0);
	__cudaRegisterFatBinaryEnd(handle);
}

enum { n = 100, to_device = 1, to_host = 2 };

static int launch(const void *host_function, unsigned grid, unsigned block, void **args, void *s)
{
	dim3 g, b;
	size_t shared;
	void *stream;
	if (__cudaPushCallConfiguration((dim3){grid, 1, 1}, (dim3){block, 1, 1}, 0, s))
		return 1;
	OK(__cudaPopCallConfiguration(&g, &b, &shared, &stream));
	return cudaLaunchKernel(host_function, g, b, args, shared, stream);
}

// adds runs kernel add on new memory, with a scale of 2, and checks sums and count.
static void adds(void)
{
	float h[n], two = 2, *a, *b, *c;
	unsigned count = n, done = 0;
	void *args[] = {&a, &b, &c, &count};
	for (int i = 0; i < n; i++)
		h[i] = i;
	OK(cudaMalloc((void **)&a, sizeof h));
	OK(cudaMallocManaged((void **)&b, sizeof h, 1));
	OK(cudaHostAlloc((void **)&c, sizeof h, 0));
	OK(cudaMemcpy(a, h, sizeof h, to_device));
	memcpy(b, h, sizeof h);
	OK(cudaMemcpyToSymbol(&scale, &two, 4, 0, to_device));
	OK(launch(&add, 2, 64, args, NULL));
	OK(cudaDeviceSynchronize());
	for (int i = 0; i < n; i++)
		CHECK(c[i] == 4 * i);
	OK(cudaMemcpyFromSymbol(&done, &calls, 4, 0, to_host));
	CHECK(done == n);
	OK(cudaMemset(a, 0, 4));
	OK(cudaMemcpy2D(h, 8, a, 40, 4, 10, to_host));
	CHECK(h[0] == 0 && h[2] == 10 && h[3] == 3 && h[18] == 90);
	CHECK(cudaMemcpy(a, h, sizeof h + 4, to_device) == 1);
	CHECK(cudaMemcpy(h, h, 4, to_device) == 1);
	CHECK(cudaGetLastError() == 1 && cudaGetLastError() == 0);
	CHECK(strcmp(cudaGetErrorName(700), "cudaErrorIllegalAddress") == 0);
	OK(cudaFree(a));
	OK(cudaFree(b));
	OK(cudaFreeHost(c));
	CHECK(cudaFree(a) == 1);
	CHECK(launch(&add, 0, 64, args, NULL) == 9);
	CHECK(cudaLaunchKernel(h, (dim3){1, 1, 1}, (dim3){1, 1, 1}, args, 0, NULL) == 98);
}

// graphs captures a copy and two dependent launches on two streams, and replays them.
static void graphs(void)
{
	float h[n], *a, *b;
	unsigned count = n;
	size_t nodes = 0;
	void *s, *other, *e, *back, *g, *x, *first[] = {&a, &a, &b, &count}, *second[] = {&b, &a, &b, &count};
	OK(cudaMalloc((void **)&a, sizeof h));
	OK(cudaMalloc((void **)&b, sizeof h));
	OK(cudaStreamCreate(&s));
	OK(cudaStreamCreate(&other));
	OK(cudaEventCreate(&e));
	OK(cudaEventCreate(&back));
	OK(cudaStreamBeginCapture(s, 0));
	OK(cudaMemcpyAsync(a, h, sizeof h, to_device, s));
	OK(launch(&add, 2, 64, first, s));
	OK(cudaEventRecord(e, s));
	OK(cudaStreamWaitEvent(other, e, 0));
	OK(launch(&add, 2, 64, second, other));
	OK(cudaEventRecord(back, other));
	OK(cudaStreamWaitEvent(s, back, 0));
	OK(cudaStreamEndCapture(s, &g));
	OK(cudaGraphGetNodes(g, NULL, &nodes));
	CHECK(nodes == 4);
	OK(cudaGraphInstantiate(&x, g, NULL, NULL, 0));
	for (int k = 1; k <= 2; k++) {
		for (int i = 0; i < n; i++)
			h[i] = k * i;
		OK(cudaGraphLaunch(x, s));
		OK(cudaMemcpy(h, b, sizeof h, to_host));
		for (int i = 0; i < n; i++)
			CHECK(h[i] == 3 * k * i);
	}
	float ms = -1;
	OK(cudaEventRecord(back, s));
	OK(cudaEventElapsedTime(&ms, e, back));
	CHECK(ms > 0);
}

// manages checks that host and kernels share a managed variable, by its name and by its address.
static void manages(void)
{
	void *args[] = {&shared_count};
	CHECK(__cudaInitModule(module) == 1);
	CHECK(*shared_count == 5);
	*shared_count = 10;
	OK(launch(&touch, 1, 1, args, NULL));
	OK(cudaDeviceSynchronize());
	CHECK(*shared_count == 112);
	unsigned seen = 0;
	OK(cudaMemcpyFromSymbol(&seen, &shared_shadow, 4, 0, to_host));
	CHECK(seen == 112);
}

// races runs kernel late, whose result is right in most orders.
static void races(void)
{
	void *out;
	void *args[] = {&out};
	OK(cudaMalloc(&out, 256));
	OK(launch(&late, 1, 64, args, NULL));
	OK(cudaDeviceSynchronize());
	puts("done");
}

// faults runs kernel outside. Every later call must fail with the same code.
static void faults(void)
{
	void *out;
	void *args[] = {&out};
	OK(cudaMalloc(&out, 256));
	CHECK(launch(&outside, 1, 1, args, NULL) == 700);
	CHECK(cudaDeviceSynchronize() == 700);
	CHECK(cudaMemcpy(args, out, 4, to_host) == 700);
	exit(7);
}

// boxes loads a box by TMA, with a launch that has attributes.
static void boxes(void)
{
	int (*encode)(void *map, int type, uint32_t rank, void *at, const uint64_t *dims, const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int l2, int fill);
	uint32_t h[16 * 16], *tensor, *out, size[] = {4, 8}, steps[] = {1, 1};
	uint64_t dims[] = {16, 16}, strides[] = {64};
	_Alignas(64) char map[128];
	int state = -1;
	for (int i = 0; i < 256; i++)
		h[i] = i;
	OK(cudaMalloc((void **)&tensor, sizeof h));
	OK(cudaMalloc((void **)&out, 128));
	OK(cudaMemcpy(tensor, h, sizeof h, to_device));
	OK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", (void **)&encode, 0, &state));
	CHECK(state == 0);
	OK(encode(map, 2, 2, tensor, dims, strides, size, steps, 0, 0, 0, 0));
	steps[0] = 2;
	CHECK(encode(map, 2, 2, tensor, dims, strides, size, steps, 0, 0, 0, 0) == 801);
	attribute cluster = {.id = 4, .value.dims = {1, 1, 1}};
	config c = {{1, 1, 1}, {32, 1, 1}, 0, NULL, &cluster, 1};
	void *args[] = {map, &out};
	OK(cudaLaunchKernelExC(&c, &box, args));
	OK(cudaMemcpy(h, out, 128, to_host));
	for (int i = 0; i < 32; i++)
		CHECK(h[i] == (unsigned)(8 + i / 4) * 16 + 4 + i % 4);
}

// most_shared returns dynamic shared memory with which one CTA fits on a multiprocessor.
static size_t most_shared(int threads) { return threads ? 200 << 10 : 0; }

// drives does what adds does by the driver alone, as the launchers of Triton do.
static void drives(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *module, *f, *in, *out;
	CHECK(cuda);
#define DRIVER(type, name, symbol, arguments) type (*name) arguments = (type (*) arguments)dlsym(cuda, symbol); CHECK(name)
	DRIVER(int, init, "cuInit", (unsigned));
	DRIVER(int, retain, "cuDevicePrimaryCtxRetain", (void **, int));
	DRIVER(int, load, "cuModuleLoadData", (void **, const void *));
	DRIVER(int, get, "cuModuleGetFunction", (void **, void *, const char *));
	DRIVER(int, global, "cuModuleGetGlobal_v2", (void **, size_t *, void *, const char *));
	DRIVER(int, alloc, "cuMemAlloc_v2", (void **, size_t));
	DRIVER(int, in_copy, "cuMemcpyHtoD_v2", (void *, const void *, size_t));
	DRIVER(int, out_copy, "cuMemcpyDtoH_v2", (void *, void *, size_t));
	DRIVER(int, start, "cuLaunchKernel", (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **));
	DRIVER(int, best, "cuOccupancyMaxPotentialBlockSize", (int *, int *, void *, size_t (*)(int), size_t, int));
	DRIVER(int, wait, "cuCtxSynchronize", (void));
	void *context, *at;
	float h[n], half = 0.5f;
	size_t bytes = 0;
	OK(init(0));
	OK(retain(&context, 0));
	OK(load(&module, fat));
	OK(get(&f, module, "add"));
	CHECK(get(&at, module, "nothing") == 500);
	OK(global(&at, &bytes, module, "scale"));
	CHECK(bytes == 4);
	OK(in_copy(at, &half, 4));
	int ctas = 0, threads = 0;
	OK(best(&ctas, &threads, f, NULL, 0, 0));
	CHECK(threads == 1024 && ctas > 0);
	OK(best(&ctas, &threads, f, most_shared, 0, 256));
	CHECK(threads == 256 && ctas == 8);
	OK(alloc(&in, sizeof h));
	OK(alloc(&out, sizeof h));
	for (int i = 0; i < n; i++)
		h[i] = i;
	OK(in_copy(in, h, sizeof h));
	struct { void *a, *b, *c; unsigned n; } params = {in, in, out, n};
	size_t size = 28;
	void *extra[] = {(void *)1, &params, (void *)2, &size, NULL};
	OK(start(f, 2, 1, 1, 64, 1, 1, 0, NULL, NULL, extra));
	OK(wait());
	OK(out_copy(h, out, sizeof h));
	for (int i = 0; i < n; i++)
		CHECK(h[i] == i);
}

int main(int argc, char **argv)
{
	struct { const char *name; void (*run)(void); } list[] = {{"add", adds}, {"graph", graphs}, {"managed", manages}, {"race", races}, {"fault", faults}, {"box", boxes}, {"driver", drives}};
	for (size_t i = 0; argc == 2 && i < sizeof list / sizeof *list; i++)
		if (strcmp(argv[1], list[i].name) == 0) {
			list[i].run();
			return 0;
		}
	return 3;
}
