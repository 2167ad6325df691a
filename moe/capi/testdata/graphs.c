/* Launches of graphs without Go, with functions of the test in place of the CUDA driver's. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>

#include "graphs.h"
#include "sonicmoe.h"

enum { LAYER = 1000000, CONTEXT = 7, THREADS = 4, GRAPHS = 2, ROUNDS = 3000 };

static int refuses, capturing; /* the call that fails: 1, 2 or 3; and whether streams are being captured */
static uint64_t launched_on;
static atomic_int alive[GRAPHS + 1], running[GRAPHS + 1], wrong, launches;

static int set_current(uint64_t context) {
	if (context != CONTEXT) wrong++;
	return refuses == 1;
}

static int is_capturing(uint64_t stream, int *status) {
	(void)stream;
	*status = capturing;
	return refuses == 2;
}

static int launch(uint64_t graph, uint64_t stream) {
	if (atomic_fetch_add(&running[graph], 1) != 0 || !alive[graph]) wrong++;
	launched_on = stream;
	sched_yield();
	launches++;
	running[graph]--;
	return refuses == 3;
}

static sm_forward_pass pass_of(uint64_t graph, uint64_t stream) {
	return (sm_forward_pass){.size = sizeof(sm_forward_pass), .tokens = 5, .stream = stream, .x = 64 * graph};
}

static void keep_pass(uint64_t graph, const sm_forward_pass *p) {
	sm_graph of = {CONTEXT, graph, (uint64_t)(uintptr_t)set_current, (uint64_t)(uintptr_t)is_capturing, (uint64_t)(uintptr_t)launch};
	alive[graph] = 1;
	sm_keep_graph(LAYER, SM_FORWARD_PASS, p, sizeof *p, &of);
}

static void keep(uint64_t graph) {
	sm_forward_pass p = pass_of(graph, 0);
	keep_pass(graph, &p);
}

static void drop(uint64_t graph) {
	sm_drop_graph(graph);
	alive[graph] = 0;
}

static void is(const char *what, int got, int want) {
	if (got != want) printf("%s: got %d, want %d\n", what, got, want);
}

static void *work(void *of) {
	for (int i = 0; i < ROUNDS; i++) {
		sm_forward_pass p = pass_of(1 + (uint64_t)i % GRAPHS, 9);
		*(int *)of += sm_launched(LAYER, SM_FORWARD_PASS, &p, sizeof p);
	}
	return NULL;
}

int main(void) {
	keep(1);
	sm_forward_pass p = pass_of(1, 9);
	is("the pass", (int)sm_forward(LAYER, &p), SM_OK); /* there is no such layer in Go */
	is("the stream", (int)launched_on, 9);
	is("another kind", (int)sm_route(LAYER, &p), SM_INVALID);
	is("another layer", (int)sm_forward(LAYER + 1, &p), SM_INVALID);
	is("NULL", (int)sm_forward(LAYER, NULL), SM_INVALID);
	p.seed = 1;
	is("other arguments", (int)sm_forward(LAYER, &p), SM_INVALID);
	p = pass_of(2, 0); /* of an older program, with a shorter struct */
	p.size = offsetof(sm_forward_pass, w3);
	keep_pass(2, &p);
	p.seed = 1;
	is("an older program", (int)sm_forward(LAYER, &p), SM_OK);
	drop(2);
	for (uint64_t size = 0; size < 8192; size += 4096 + 16) {
		p.size = size;
		is("a wrong size", (int)sm_forward(LAYER, &p), SM_INVALID);
	}
	p = pass_of(1, 9);
	for (refuses = 1; refuses <= 3; refuses++) is("a call that fails", sm_launched(LAYER, SM_FORWARD_PASS, &p, sizeof p), 0);
	refuses = 0, capturing = 1;
	is("a captured stream", sm_launched(LAYER, SM_FORWARD_PASS, &p, sizeof p), 0);
	capturing = 0;
	is("launches", launches, 3);

	keep(2);
	pthread_t threads[THREADS];
	int done[THREADS] = {0}, sum = 0;
	launches = 0;
	for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, &done[i]);
	for (int i = 0; i < 200; i++) {
		drop(2);
		sched_yield();
		keep(2);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		sum += done[i];
	}
	is("launches of threads", sum, launches);
	is("launches of the graph that stays", sum >= THREADS * ROUNDS / 2, 1);
	drop(1), drop(2), drop(2);
	is("a dropped graph", (int)sm_forward(LAYER, &p), SM_INVALID);
	is("launches at the same time, or of a dropped graph", wrong, 0);
	printf("ran\n");
	return 0;
}
