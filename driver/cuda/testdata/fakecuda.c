// A library that replaces the CUDA driver library in tests. It records its calls, keeps
// device memory on the heap, and fails in the functions that a test chooses. Built with
// -DOLD it is a driver for CUDA 11.8. With -DNO_TENSORMAP it lacks an optional function,
// and with -DNO_LAUNCH a required one.
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t u64;
typedef uint32_t u32;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[1 << 16];
static size_t log_size;
static struct { char name[64]; int code; } failing;
static int not_ready, block_ms, capturing, gpus = 2;
static __thread void *context;
static uintptr_t next_handle = 0x1000;

// Functions with which a test controls the library.
void fake_fail(const char *name, int code) {
	pthread_mutex_lock(&lock);
	snprintf(failing.name, sizeof failing.name, "%s", name);
	failing.code = code;
	pthread_mutex_unlock(&lock);
}
// fake_lose makes a GPU lost: the driver counts it but cannot use it.
static int lost = -1;
void fake_lose(int ordinal) { lost = ordinal; }
void fake_set(int queries_not_ready, int ms, int gpu_count) { not_ready = queries_not_ready; block_ms = ms; gpus = gpu_count; }
void fake_log(const char **out) { log_text[log_size] = 0; *out = log_text; }
void fake_clear(void) { pthread_mutex_lock(&lock); log_size = 0; pthread_mutex_unlock(&lock); }

static void say(const char *format, ...) {
	pthread_mutex_lock(&lock);
	va_list args;
	va_start(args, format);
	if (log_size < sizeof log_text - 1024) log_size += vsnprintf(log_text + log_size, 1024, format, args);
	va_end(args);
	pthread_mutex_unlock(&lock);
}
static uintptr_t handle(void) { return __sync_add_and_fetch(&next_handle, 0x10); }
static int fails(const char *name) {
	pthread_mutex_lock(&lock);
	int code = failing.code && !strcmp(failing.name, name) ? failing.code : 0;
	pthread_mutex_unlock(&lock);
	return code;
}
// users counts the users of the primary contexts 0xC0 + device. late counts the calls
// that used a context without users, or a stream that was destroyed.
static int users[64], late;
static unsigned char gone[1 << 16]; // by handle / 16
int fake_late(void) { return __sync_fetch_and_add(&late, 0); }
static int released(void) {
	uintptr_t d = (uintptr_t)context - 0xC0;
	if (d >= 64 || __sync_fetch_and_add(&users[d], 0) > 0) return 0;
	__sync_add_and_fetch(&late, 1);
	return 1;
}
static void used(void *stream) {
	uintptr_t h = (uintptr_t)stream / 16;
	if (h && h < sizeof gone && gone[h]) __sync_add_and_fetch(&late, 1);
}
// A function that needs a context returns 201 without a current context, and 709 if the
// context was released.
#define FREE(name) int failed = fails(#name); if (failed) return failed
#define NEEDS(name) FREE(name); if (!context) return 201; if (released()) return 709

int cuDriverGetVersion(int *v) {
#ifdef OLD
	*v = 11080;
#else
	*v = 12080;
#endif
	return 0;
}
int cuInit(u32 flags) { FREE(cuInit); return flags ? 1 : 0; }
int cuGetErrorName(int code, const char **out) {
	static char names[1000][32];
	if (code < 0 || code > 999) return 1;
	snprintf(names[code], 32, "CUDA_ERROR_FAKE_%d", code);
	*out = names[code];
	return 0;
}
int cuGetErrorString(int code, const char **out) { *out = "as the test asked"; return code < 0; }
int cuDeviceGetCount(int *n) { FREE(cuDeviceGetCount); *n = gpus; return 0; }
int cuDeviceGet(int *d, int ordinal) { FREE(cuDeviceGet); if (ordinal == lost) return 101; *d = 40 + ordinal; return 0; }
int cuDeviceGetPCIBusId(char *bus, int size, int d) { snprintf(bus, size, "0000:%02x:00.0", 27 + d); return 0; }
int cuDeviceGetName(char *name, int size, int d) { snprintf(name, size, "Fake GPU %d", d); return 0; }
int cuDeviceGetAttribute(int *v, int attribute, int d) {
	*v = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 97 ? 232448 : attribute * 1000 + d;
	return 0;
}
int cuDevicePrimaryCtxRetain(void **c, int d) { FREE(cuDevicePrimaryCtxRetain); *c = (void *)(uintptr_t)(0xC0 + d); __sync_add_and_fetch(&users[d], 1); say("retain %d\n", d); return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { FREE(cuDevicePrimaryCtxRelease_v2); __sync_sub_and_fetch(&users[d], 1); say("release %d\n", d); return 0; }
int cuCtxSetCurrent(void *c) { FREE(cuCtxSetCurrent); context = c; return 0; }
static int apart;
void fake_apart(void) { apart = 1; }
int cuDeviceCanAccessPeer(int *can, int d, int other) { FREE(cuDeviceCanAccessPeer); say("peer %d %d\n", d, other); *can = !apart; return 0; }
int cuCtxEnablePeerAccess(void *c, u32 flags) { NEEDS(cuCtxEnablePeerAccess); say("enable %p %u\n", c, flags); return 0; }
int cuCtxSynchronize(void) { NEEDS(cuCtxSynchronize); usleep(block_ms * 1000); return 0; }

// The linker.
static u64 image[64];
static char *error_log, *info_log;
static int logs(const char *op, u32 n, int *keys, void **values) {
	say("%s", op);
	for (u32 i = 0; i < n; i++) {
		if (keys[i] == 3) info_log = values[i];
		else if (keys[i] == 5) error_log = values[i];
		else say(" %d=%u", keys[i], (u32)(uintptr_t)values[i]);
	}
	say("\n");
	return 0;
}
int cuLinkCreate_v2(u32 n, int *keys, void **values, void **state) { NEEDS(cuLinkCreate_v2); *state = (void *)handle(); return logs("link", n, keys, values); }
int cuLinkAddData_v2(void *state, int type, void *data, size_t size, const char *name, u32 n, int *keys, void **values) {
	NEEDS(cuLinkAddData_v2);
	const char *text = data;
	say("data type %d, %zu bytes, last %d, name %s, %u options\n", type, size, text[size - 1], name, n);
	strcpy(info_log, "some information");
	if (strstr(text, "mistake")) { strcpy(error_log, "ptx, line 3; error: mistake"); return 218; }
	return 0;
}
int cuLinkComplete(void *state, void **out, size_t *size) {
	NEEDS(cuLinkComplete);
	memset(image, 0, sizeof image);
	memcpy(image, "\x7f" "ELF\x02\x01\x01\x33\x07", 9); // an ELF header of machine 190, as CUDA 12.8 writes it
	((uint16_t *)image)[8] = 2; ((uint16_t *)image)[9] = 190; ((u32 *)image)[5] = 128; ((uint16_t *)image)[26] = 64;
	*out = image; *size = 64;
	return 0;
}
int cuLinkDestroy(void *state) { memset(image, 0xEE, sizeof image); say("link destroyed\n"); return 0; }

// Modules and launches.
int cuModuleLoadDataEx(void **m, const void *code, u32 n, int *keys, void **values) {
	logs("load", n, keys, values);
	strcpy(error_log, "what the loader said");
	NEEDS(cuModuleLoadDataEx);
	*m = (void *)handle();
	return 0;
}
int cuModuleLoadData(void **m, const void *code) { NEEDS(cuModuleLoadData); say("load without options\n"); *m = (void *)handle(); return 0; }
int cuModuleUnload(void *m) { NEEDS(cuModuleUnload); return 0; }
int cuModuleGetFunction(void **f, void *m, const char *name) { NEEDS(cuModuleGetFunction); *f = (void *)0xF00; return strcmp(name, "kernel") ? 500 : 0; }
int cuFuncGetAttribute(int *v, int attribute, void *f) { NEEDS(cuFuncGetAttribute); *v = attribute == 0 ? 256 : attribute == 8 ? 49152 : 100 + attribute; return 0; }
int cuFuncSetAttribute(void *f, int attribute, int v) { NEEDS(cuFuncSetAttribute); say("function %p attribute %d = %d\n", f, attribute, v); return 0; }

typedef struct { int id; char pad[4]; union { char room[64]; u64 align; u32 words[3]; } value; } attribute;
typedef struct { u32 grid[3], block[3], shared; void *stream; attribute *attributes; u32 count; } config;
static void say_config(const char *op, const config *c) {
	say("%s %u,%u,%u x %u,%u,%u shared %u stream %p", op, c->grid[0], c->grid[1], c->grid[2],
		c->block[0], c->block[1], c->block[2], c->shared, c->stream);
	for (u32 i = 0; i < c->count; i++) {
		u32 *w = c->attributes[i].value.words;
		say(" [%d: %u %u %u]", c->attributes[i].id, w[0], w[1], w[2]);
	}
}
#ifndef NO_LAUNCH
int cuLaunchKernelEx(const config *c, void *f, void **arguments, void **extra) {
	NEEDS(cuLaunchKernelEx);
	say_config("launch", c);
	say(" function %p arguments %p params", f, (void *)arguments);
	if (extra) {
		if (extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4]) return 1;
		u64 size = *(u64 *)extra[3], sum = 0;
		for (u64 i = 0; i < size; i++) sum = sum * 31 + ((unsigned char *)extra[1])[i];
		say(" %llu bytes, sum %llu", (unsigned long long)size, (unsigned long long)sum);
	}
	say("\n");
	return 0;
}
#endif
int cuOccupancyMaxActiveClusters(int *n, void *f, const config *c) { NEEDS(cuOccupancyMaxActiveClusters); say_config("clusters", c); say("\n"); *n = 66; return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *f, int threads, size_t shared) { NEEDS(cuOccupancyMaxActiveBlocksPerMultiprocessor); say("blocks %d %zu\n", threads, shared); *n = 3; return 0; }
#ifndef NO_TENSORMAP
int cuTensorMapEncodeTiled(void *out, int type, u32 rank, void *address, const u64 *dims, const u64 *strides,
		const u32 *box, const u32 *steps, int interleave, int swizzle, int promote, int fill) {
	NEEDS(cuTensorMapEncodeTiled);
	say("map aligned %d type %d rank %u at %p", (int)((uintptr_t)out % 128 == 0), type, rank, address);
	for (u32 i = 0; i < rank; i++) say(" %llu/%u/%u", (unsigned long long)dims[i], box[i], steps[i]);
	for (u32 i = 0; i + 1 < rank; i++) say(" +%llu", (unsigned long long)strides[i]);
	say(" interleave %d swizzle %d promote %d fill %d\n", interleave, swizzle, promote, fill);
	for (int i = 0; i < 128; i++) ((unsigned char *)out)[i] = i;
	return 0;
}
#endif

// Memory, on the heap.
static struct { u64 from, bytes, id; } allocations[1024];
static u64 last_id;
static int record(u64 from, size_t n) {
	pthread_mutex_lock(&lock);
	for (int i = 0; i < 1024; i++) if (!allocations[i].id) { allocations[i].from = from; allocations[i].bytes = n; allocations[i].id = ++last_id; break; }
	pthread_mutex_unlock(&lock);
	return 0;
}
static void forget(u64 from) {
	pthread_mutex_lock(&lock);
	for (int i = 0; i < 1024; i++) if (allocations[i].from == from) allocations[i].id = 0;
	pthread_mutex_unlock(&lock);
}
static int range(u64 *from, size_t *n, u64 *id, u64 p) {
	int r = 1;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < 1024; i++) {
		if (!allocations[i].id || p - allocations[i].from >= allocations[i].bytes) continue;
		if (from) *from = allocations[i].from;
		if (n) *n = allocations[i].bytes;
		if (id) *id = allocations[i].id;
		r = 0;
	}
	pthread_mutex_unlock(&lock);
	return r;
}
int cuMemAlloc_v2(u64 *p, size_t n) { NEEDS(cuMemAlloc_v2); void *m; if (n > 1u << 30 || posix_memalign(&m, 256, n)) return 2; *p = (u64)m; return record(*p, n); }
int cuMemFree_v2(u64 p) { NEEDS(cuMemFree_v2); forget(p); free((void *)p); return 0; }
int cuMemGetInfo_v2(size_t *f, size_t *t) { NEEDS(cuMemGetInfo_v2); *f = 1ull << 36; *t = 1ull << 37; return 0; }
int cuMemAllocAsync(u64 *p, size_t n, void *s) { NEEDS(cuMemAllocAsync); return cuMemAlloc_v2(p, n); }
int cuMemFreeAsync(u64 p, void *s) { NEEDS(cuMemFreeAsync); return cuMemFree_v2(p); }
int cuMemcpyHtoDAsync_v2(u64 d, const void *s, size_t n, void *stream) { NEEDS(cuMemcpyHtoDAsync_v2); memcpy((void *)d, s, n); return 0; }
int cuMemcpyDtoHAsync_v2(void *d, u64 s, size_t n, void *stream) { NEEDS(cuMemcpyDtoHAsync_v2); memcpy(d, (void *)s, n); return 0; }
int cuMemcpyDtoDAsync_v2(u64 d, u64 s, size_t n, void *stream) { NEEDS(cuMemcpyDtoDAsync_v2); memmove((void *)d, (void *)s, n); return 0; }
int cuMemsetD32Async(u64 d, u32 v, size_t n, void *stream) { NEEDS(cuMemsetD32Async); used(stream); for (size_t i = 0; i < n; i++) ((u32 *)d)[i] = v; return 0; }

// Streams, events, graphs.
static int query(void) { return __sync_fetch_and_sub(&not_ready, 1) > 0 ? 600 : 0; }
int cuStreamCreate(void **s, u32 flags) { NEEDS(cuStreamCreate); *s = (void *)handle(); say("stream flags %u\n", flags); return 0; }
int cuStreamDestroy_v2(void *s) { NEEDS(cuStreamDestroy_v2); used(s); if ((uintptr_t)s / 16 < sizeof gone) gone[(uintptr_t)s / 16] = 1; say("stream destroyed\n"); return 0; }
int cuStreamQuery(void *s) { NEEDS(cuStreamQuery); used(s); return query(); }
int cuStreamSynchronize(void *s) { usleep(block_ms * 1000); NEEDS(cuStreamSynchronize); return 0; }
int cuStreamWaitEvent(void *s, void *e, u32 flags) { NEEDS(cuStreamWaitEvent); say("wait %d\n", flags); return 0; }
int cuEventCreate(void **e, u32 flags) { NEEDS(cuEventCreate); *e = (void *)handle(); say("event flags %u\n", flags); return 0; }
int cuEventDestroy_v2(void *e) { NEEDS(cuEventDestroy_v2); return 0; }
int cuEventRecord(void *e, void *s) { NEEDS(cuEventRecord); return 0; }
int cuEventQuery(void *e) { NEEDS(cuEventQuery); return query(); }
int cuEventSynchronize(void *e) { NEEDS(cuEventSynchronize); usleep(block_ms * 1000); return 0; }
int cuEventElapsedTime(float *ms, void *from, void *to) { NEEDS(cuEventElapsedTime); *ms = 1.5f; return 0; }
int cuStreamBeginCapture_v2(void *s, int mode) { NEEDS(cuStreamBeginCapture_v2); capturing = 1; say("capture mode %d\n", mode); return 0; }
int cuStreamEndCapture(void *s, void **g) { NEEDS(cuStreamEndCapture); if (!capturing) return 401; capturing = 0; *g = (void *)handle(); return 0; }
int cuStreamIsCapturing(void *s, int *status) { NEEDS(cuStreamIsCapturing); *status = capturing; return 0; }
int cuGraphInstantiateWithFlags(void **e, void *g, u64 flags) { NEEDS(cuGraphInstantiateWithFlags); *e = (void *)handle(); say("instantiate flags %llu\n", (unsigned long long)flags); return 0; }
int cuGraphLaunch(void *e, void *s) { NEEDS(cuGraphLaunch); say("graph launch\n"); return 0; }
int cuGraphGetNodes(void *g, void **nodes, size_t *n) { NEEDS(cuGraphGetNodes); *n = nodes ? 0 : 5; return 0; }
int cuGraphDestroy(void *g) { NEEDS(cuGraphDestroy); say("graph destroyed\n"); return 0; }
int cuGraphExecDestroy(void *e) { NEEDS(cuGraphExecDestroy); say("graph exec destroyed\n"); return 0; }

// Memory of other processes: the handle of an allocation has its address, because the processes of a
// test are threads. A wait for a value ends when another thread has written it.
typedef struct { u64 words[8]; } ipc_handle;
int cuMemGetAddressRange_v2(u64 *from, size_t *n, u64 p) { NEEDS(cuMemGetAddressRange_v2); return range(from, n, 0, p); }
int cuPointerGetAttribute(void *v, int attribute, u64 p) { NEEDS(cuPointerGetAttribute); return attribute == 7 ? range(0, 0, v, p) : 1; }
int cuIpcGetMemHandle(ipc_handle *h, u64 p) { NEEDS(cuIpcGetMemHandle); for (int i = 0; i < 8; i++) h->words[i] = p + i; return 0; }
int cuIpcOpenMemHandle_v2(u64 *p, ipc_handle h, u32 flags) {
	NEEDS(cuIpcOpenMemHandle_v2);
	for (int i = 0; i < 8; i++) if (h.words[i] != h.words[0] + i) return 1;
	say("open flags %u\n", flags);
	*p = h.words[0];
	return 0;
}
int cuIpcCloseMemHandle(u64 p) { NEEDS(cuIpcCloseMemHandle); say("close memory\n"); return 0; }
int cuMemHostRegister_v2(void *p, size_t n, u32 flags) { NEEDS(cuMemHostRegister_v2); say("register %zu bytes, flags %u\n", n, flags); return 0; }
int cuMemHostUnregister(void *p) { NEEDS(cuMemHostUnregister); say("unregister\n"); return 0; }
int cuMemHostGetDevicePointer_v2(u64 *d, void *p, u32 flags) { NEEDS(cuMemHostGetDevicePointer_v2); *d = (u64)p; return 0; }
int cuStreamWriteValue32_v2(void *s, u64 p, u32 v, u32 flags) { NEEDS(cuStreamWriteValue32_v2); used(s); __atomic_store_n((u32 *)p, v, __ATOMIC_SEQ_CST); return 0; }
int cuStreamWaitValue32_v2(void *s, u64 p, u32 v, u32 flags) {
	NEEDS(cuStreamWaitValue32_v2);
	used(s);
	while ((int)(__atomic_load_n((u32 *)p, __ATOMIC_SEQ_CST) - v) < 0) usleep(20);
	return 0;
}
