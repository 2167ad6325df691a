// Types of CUDA's interfaces that the library's functions take or fill.
#ifndef EMULATE_CUDA_H
#define EMULATE_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef struct dim3 {
	uint32_t x, y, z;
} dim3;

// An attribute of a launch. Layout and numbers are the same in runtime and driver.
typedef struct launch_attribute {
	int32_t id;
	char pad[4];
	union {
		char bytes[64];
		int32_t number;
		dim3 dims;
	} value;
} launch_attribute;

// cudaLaunchConfig_t
typedef struct launch_config {
	dim3 grid, block;
	size_t shared;
	uintptr_t stream;
	launch_attribute *attributes;
	uint32_t count;
} launch_config;

// CUlaunchConfig
typedef struct driver_launch_config {
	uint32_t grid[3], block[3], shared;
	uintptr_t stream;
	launch_attribute *attributes;
	uint32_t count;
} driver_launch_config;

typedef struct func_attributes {
	size_t shared, constant, local;
	int32_t threads, registers, ptx, binary, cache, dynamic, carveout;
	int32_t must_set_cluster, cluster[3], scheduling, non_portable;
	int32_t reserved[16];
} func_attributes;

typedef struct pointer_attributes {
	int32_t type, device;
	uintptr_t device_pointer, host_pointer;
	long reserved[8];
} pointer_attributes;

typedef struct pitched_ptr {
	uintptr_t at;
	size_t pitch, width, height;
} pitched_ptr;

typedef struct extent {
	size_t width, height, depth;
} extent;

// cudaMemcpy3DParms
typedef struct copy_3d {
	uintptr_t from_array;
	extent from_pos;
	pitched_ptr from;
	uintptr_t to_array;
	extent to_pos;
	pitched_ptr to;
	extent size;
	int32_t kind;
} copy_3d;

typedef struct kernel_node {
	uintptr_t function;
	dim3 grid, block;
	uint32_t shared;
	uintptr_t *params, *extra;
} kernel_node;

typedef struct memset_node {
	uintptr_t at;
	size_t pitch;
	uint32_t value, element;
	size_t width, height;
} memset_node;

typedef struct host_node {
	uintptr_t function, data;
} host_node;

typedef size_t (*shared_of_block)(int threads);

// own_symbol returns the address of a function of this library, or 0.
uintptr_t own_symbol(const char *name);

typedef void (*host_function)(void *);
typedef void (*stream_callback)(uintptr_t stream, int32_t status, void *data);

#endif
