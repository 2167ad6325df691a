/*
 * The functions of sonicmoe.h. Go's runtime does not survive a fork: in the child process
 * a call into it would never return. Each function therefore fails in the child.
 */
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "graphs.h"
#include "sonicmoe.h"
#include "text.h"

int sm_forked;

static void in_child(void) { sm_forked = 1; }

__attribute__((constructor)) static void watch_forks(void) { (void)pthread_atfork(NULL, NULL, in_child); }

static sm_status refused(void) {
	strcpy(sm_text(), "this process was forked from one that had loaded the library, which can't go on here: load it in the child only, or start the child with exec");
	return SM_FAILED;
}

#define EXPORT(name, parameters, arguments) \
	extern sm_status sm_go_##name parameters; \
	sm_status sm_##name parameters { return sm_forked ? refused() : sm_go_##name arguments; }

/* A pass that repeats is launched as a graph, without Go. */
#define PASS(name, type, kind) \
	extern sm_status sm_go_##name(sm_handle layer, const type *pass); \
	_Static_assert(sizeof(type) <= SM_PASS_BYTES, "a graph's pass has no room"); \
	_Static_assert(offsetof(type, stream) == offsetof(sm_forward_pass, stream), "graphs.c reads the stream there"); \
	sm_status sm_##name(sm_handle layer, const type *pass) { \
		if (sm_forked) return refused(); \
		return sm_launched(layer, kind, pass, sizeof *pass) ? SM_OK : sm_go_##name(layer, pass); \
	}

EXPORT(open, (const char *name, sm_handle *device), (name, device))
EXPORT(config_of_model, (const char *json, sm_config *config), (json, config))
EXPORT(store_layer, (const char *folder, int64_t number, const char *path), (folder, number, path))
EXPORT(config_of_stored, (const char *path, sm_config *config), (path, config))
EXPORT(layer_new, (sm_handle device, const sm_config *config, sm_handle *layer), (device, config, layer))
EXPORT(sizes, (sm_handle layer, int64_t tokens, int64_t entries, sm_sizes_of *sizes), (layer, tokens, entries, sizes))
PASS(forward, sm_forward_pass, SM_FORWARD_PASS)
PASS(route, sm_forward_pass, SM_ROUTE_PASS)
PASS(experts, sm_forward_pass, SM_EXPERTS_PASS)
EXPORT(arrange, (sm_handle layer, const sm_forward_pass *pass), (layer, pass))
PASS(backward, sm_backward_pass, SM_BACKWARD_PASS)
PASS(experts_backward, sm_backward_pass, SM_EXPERTS_BACKWARD_PASS)
EXPORT(loads, (sm_handle layer, uint64_t stream, int64_t tokens, uint64_t expert_ids, uint64_t loads), (layer, stream, tokens, expert_ids, loads))
EXPORT(update_selection_bias, (sm_handle layer, uint64_t stream, uint64_t loads, uint64_t selection_bias, double rate), (layer, stream, loads, selection_bias, rate))
EXPORT(join, (sm_handle device, const sm_config *config, const sm_joining *joining, sm_handle *rank), (device, config, joining, rank))
EXPORT(rank_sizes, (sm_handle rank, sm_rank_sizes_of *sizes), (rank, sizes))
EXPORT(rank_forward, (sm_handle rank, const sm_forward_pass *pass, int64_t *counts), (rank, pass, counts))
EXPORT(rank_experts, (sm_handle rank, const sm_forward_pass *pass, int64_t *counts), (rank, pass, counts))
EXPORT(rank_backward, (sm_handle rank, const sm_backward_pass *pass, const int64_t *counts), (rank, pass, counts))
EXPORT(rank_wait, (sm_handle rank, uint64_t stream), (rank, stream))
EXPORT(warm, (const char *chip, const sm_config *config, const char *directory), (chip, config, directory))
EXPORT(add_bundle, (const char *path), (path))
EXPORT(set_bundle_key, (const char *key), (key))
EXPORT(check_kernel, (const char *run, void *const *buffers, char *report, int64_t bytes), (run, buffers, report, bytes))
EXPORT(close, (sm_handle any), (any))
EXPORT(alloc, (sm_handle device, int64_t bytes, uint64_t *address), (device, bytes, address))
EXPORT(free, (sm_handle device, uint64_t address), (device, address))
EXPORT(write, (sm_handle device, uint64_t stream, uint64_t to, const void *from, int64_t bytes), (device, stream, to, from, bytes))
EXPORT(read, (sm_handle device, uint64_t stream, void *to, uint64_t from, int64_t bytes), (device, stream, to, from, bytes))

const char *sm_error_text(void) { return sm_text(); }

int32_t sm_abi(void) { return 1; }
