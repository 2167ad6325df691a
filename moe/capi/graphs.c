#include "graphs.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "sonicmoe.h"

enum { BUCKETS = 4096 };

/* A pass with its graph. A launch of the graph holds the mutex launching, because the driver allows
 * one launch of a graph at a time. */
typedef struct kept {
	struct kept *next;
	pthread_mutex_t launching;
	uint64_t layer;
	int32_t kind;
	uint64_t bytes, hash;
	sm_graph of;
	unsigned char pass[];
} kept;

/* The lock protects buckets. A thread that holds the lock may wait for launching of a pass. A thread
 * that holds launching must not wait for the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kept *buckets[BUCKETS];

static uint64_t hash_of(uint64_t layer, int32_t kind, const unsigned char *pass, uint64_t bytes) {
	uint64_t h = layer * 31 + (uint64_t)kind, word;
	for (uint64_t i = 0; i + sizeof word <= bytes; i += sizeof word) {
		memcpy(&word, pass + i, sizeof word);
		h = (h ^ word) * 0x9e3779b97f4a7c15u;
		h ^= h >> 32;
	}
	return h;
}

void sm_keep_graph(uint64_t layer, int32_t kind, const void *pass, uint64_t bytes, const sm_graph *graph) {
	kept *k = bytes <= SM_PASS_BYTES ? malloc(sizeof *k + bytes) : NULL;
	if (k == NULL) return; /* Go launches the graph */
	*k = (kept){.layer = layer, .kind = kind, .bytes = bytes, .hash = hash_of(layer, kind, pass, bytes), .of = *graph};
	(void)pthread_mutex_init(&k->launching, NULL);
	memcpy(k->pass, pass, bytes);
	pthread_mutex_lock(&lock);
	k->next = buckets[k->hash % BUCKETS];
	buckets[k->hash % BUCKETS] = k;
	pthread_mutex_unlock(&lock);
}

void sm_drop_graph(uint64_t graph) {
	kept *found = NULL;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < BUCKETS && found == NULL; i++)
		for (kept **at = &buckets[i]; *at != NULL; at = &(*at)->next)
			if ((*at)->of.graph == graph) {
				found = *at;
				*at = found->next;
				break;
			}
	pthread_mutex_unlock(&lock);
	if (found == NULL) return;
	pthread_mutex_lock(&found->launching); /* waits for a launch in progress */
	pthread_mutex_unlock(&found->launching);
	pthread_mutex_destroy(&found->launching);
	free(found);
}

/* Returns the graph of a pass, which the caller may launch until it unlocks launching, or NULL. */
static kept *find(uint64_t layer, int32_t kind, const unsigned char *pass, uint64_t bytes) {
	uint64_t hash = hash_of(layer, kind, pass, bytes);
	pthread_mutex_lock(&lock);
	kept *k = buckets[hash % BUCKETS];
	while (k != NULL && !(k->hash == hash && k->layer == layer && k->kind == kind && k->bytes == bytes && memcmp(k->pass, pass, bytes) == 0)) k = k->next;
	if (k != NULL) pthread_mutex_lock(&k->launching);
	pthread_mutex_unlock(&lock);
	return k;
}

int sm_launched(uint64_t layer, int32_t kind, const void *pass, uint64_t bytes) {
	_Alignas(8) unsigned char own[SM_PASS_BYTES];
	uint64_t size, stream, none = 0;
	if (pass == NULL || bytes > sizeof own) return 0;
	memcpy(&size, pass, sizeof size);
	if (size > bytes || size < offsetof(sm_forward_pass, workspace)) return 0; /* Go says what is wrong */
	memcpy(own, pass, size);
	memset(own + size, 0, bytes - size);
	memcpy(&stream, own + offsetof(sm_forward_pass, stream), sizeof stream);
	memcpy(own + offsetof(sm_forward_pass, stream), &none, sizeof none);
	kept *k = find(layer, kind, own, bytes);
	if (k == NULL) return 0;
	int (*set_current)(uint64_t) = (int (*)(uint64_t))(uintptr_t)k->of.set_current;
	int (*is_capturing)(uint64_t, int *) = (int (*)(uint64_t, int *))(uintptr_t)k->of.is_capturing;
	int (*launch)(uint64_t, uint64_t) = (int (*)(uint64_t, uint64_t))(uintptr_t)k->of.launch;
	int capturing = 0;
	int done = set_current(k->of.context) == 0 && is_capturing(stream, &capturing) == 0 && !capturing && launch(k->of.graph, stream) == 0;
	pthread_mutex_unlock(&k->launching);
	return done;
}
