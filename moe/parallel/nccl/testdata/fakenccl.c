// A library that replaces NCCL in tests. Ranks are threads of one process, and device memory
// is host memory. The work of a group runs in a thread, so that calls are in progress after
// they have returned. Built with -DOLD it is version 2.22. With -DNO_RECV it lacks a function.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 16, OPS = 256, BOX = 64, ID = 128 };

struct post { const void *at; size_t bytes; int taken; };
struct world { char id[ID]; int ranks, joined; struct post *box[MOST][MOST][BOX]; unsigned put[MOST][MOST], got[MOST][MOST]; };
struct op { int receives, peer; void *at; size_t bytes; };
struct comm { struct world *world; int rank, state, aborted; struct op ops[OPS]; int n; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct world worlds[64];
static int world_count, ids, aborts;
static __thread struct comm *grouped[4];
static __thread int depth;

// Functions with which a test controls the library.
static char failing[64];
static int failing_code;
void fake_fail(const char *name, int code) {
	pthread_mutex_lock(&lock);
	snprintf(failing, sizeof failing, "%s", name);
	failing_code = code;
	pthread_mutex_unlock(&lock);
}
int fake_aborts(void) { return __sync_fetch_and_add(&aborts, 0); }
#define FAILS(name) do { if (failing_code && !strcmp(failing, #name)) return failing_code; } while (0)

int ncclGetVersion(int *v) {
#ifdef OLD
	*v = 22205;
#else
	*v = 22809;
#endif
	return 0;
}
const char *ncclGetErrorString(int r) { return "as the test asked"; }
const char *ncclGetLastError(void *comm) { return "the last error\n"; }
int ncclGetUniqueId(char *id) {
	FAILS(ncclGetUniqueId);
	memset(id, 0, ID);
	snprintf(id, ID, "id %d", __sync_add_and_fetch(&ids, 1));
	return 0;
}
int ncclCommInitRankScalable(struct comm **out, int ranks, int rank, int n, const char *id, const uint32_t *config) {
	FAILS(ncclCommInitRankScalable);
	// The config: size, magic, version, and calls that do not block.
	if (n != 1 || ranks > MOST || config[0] != 48 || config[2] != 0xcafebeef || config[3] != 22304 || config[4] != 0) return 4;
	pthread_mutex_lock(&lock);
	int i = 0;
	while (i < world_count && memcmp(worlds[i].id, id, ID)) i++;
	if (i == world_count) {
		memcpy(worlds[i].id, id, ID);
		worlds[i].ranks = ranks;
		world_count++;
	}
	struct comm *c = calloc(1, sizeof *c);
	c->world = &worlds[i];
	c->rank = rank;
	worlds[i].joined++;
	*out = c;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return 7;
}
int ncclCommGetAsyncError(struct comm *c, int *state) {
	FAILS(ncclCommGetAsyncError);
	pthread_mutex_lock(&lock);
	*state = c->world->joined < c->world->ranks ? 7 : c->state;
	pthread_mutex_unlock(&lock);
	return 0;
}
int ncclCommAbort(struct comm *c) {
	pthread_mutex_lock(&lock);
	c->aborted = 1;
	aborts++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return 0;
}
int ncclCommDestroy(struct comm *c) { FAILS(ncclCommDestroy); return 0; }

// take waits for the data that a rank sends. The caller holds the lock.
static int take(struct comm *c, struct op *o) {
	struct world *w = c->world;
	while (w->got[o->peer][c->rank] == w->put[o->peer][c->rank]) {
		if (c->aborted) return 0;
		pthread_cond_wait(&changed, &lock);
	}
	struct post *p = w->box[o->peer][c->rank][w->got[o->peer][c->rank]++ % BOX];
	if (p->bytes != o->bytes) c->state = 5;
	else memcpy(o->at, p->at, p->bytes);
	p->taken = 1;
	pthread_cond_broadcast(&changed);
	return 1;
}
static void *work(void *of) {
	struct comm *c = of;
	struct world *w = c->world;
	struct post posts[OPS];
	pthread_mutex_lock(&lock);
	for (int i = 0; i < c->n; i++) {
		struct op *o = &c->ops[i];
		posts[i] = (struct post){o->at, o->bytes, o->receives};
		if (!o->receives) w->box[c->rank][o->peer][w->put[c->rank][o->peer]++ % BOX] = &posts[i];
	}
	pthread_cond_broadcast(&changed);
	for (int i = 0; i < c->n && !c->aborted; i++)
		if (c->ops[i].receives) take(c, &c->ops[i]);
	for (int i = 0; i < c->n; i++)
		while (!posts[i].taken && !c->aborted) pthread_cond_wait(&changed, &lock);
	c->n = 0;
	if (c->state == 7) c->state = 0;
	pthread_mutex_unlock(&lock);
	return 0;
}
int ncclGroupStart(void) { FAILS(ncclGroupStart); depth = 1; grouped[0] = 0; return 0; }
int ncclGroupEnd(void) {
	depth = 0;
	FAILS(ncclGroupEnd);
	struct comm *c = grouped[0];
	if (!c) return 0;
	c->state = 7;
	pthread_t t;
	pthread_create(&t, 0, work, c);
	pthread_detach(t);
	return 7;
}
static int add(struct comm *c, int receives, void *at, size_t bytes, int peer) {
	if (!depth || c->n == OPS || peer == c->rank || peer >= c->world->ranks) return 4;
	grouped[0] = c;
	c->ops[c->n++] = (struct op){receives, peer, at, bytes};
	return 0;
}
int ncclSend(const void *at, size_t n, int type, int peer, struct comm *c, void *stream) {
	FAILS(ncclSend);
	return type == 1 && stream ? add(c, 0, (void *)at, n, peer) : 4;
}
#ifndef NO_RECV
int ncclRecv(void *at, size_t n, int type, int peer, struct comm *c, void *stream) {
	FAILS(ncclRecv);
	return type == 1 && stream ? add(c, 1, at, n, peer) : 4;
}
#endif
int ncclAllGather(const void *from, void *to, size_t n, int type, struct comm *c, void *stream) {
	FAILS(ncclAllGather);
	memcpy((char *)to + c->rank * n, from, n);
	for (int i = 0; i < c->world->ranks; i++)
		if (i != c->rank && (add(c, 0, (void *)from, n, i) || add(c, 1, (char *)to + i * n, n, i))) return 4;
	return 0;
}
