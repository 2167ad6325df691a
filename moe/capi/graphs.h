/*
 * Graphs of passes, for launches without Go. A thread that enters Go after a pause of 0.1 ms
 * wakes threads of Go's runtime, which costs more than the launch of a graph.
 */
#ifndef SONICMOE_GRAPHS_H
#define SONICMOE_GRAPHS_H

#include <stdint.h>

/* The most bytes of a pass's struct. */
enum { SM_PASS_BYTES = 1024 };

/* The kinds of passes. Two kinds may have equal structs. */
enum { SM_FORWARD_PASS = 1, SM_ROUTE_PASS, SM_EXPERTS_PASS, SM_BACKWARD_PASS, SM_EXPERTS_BACKWARD_PASS };

/* A graph of the CUDA driver, with the context and the driver's functions that launch it. */
typedef struct sm_graph {
	uint64_t context, graph;                    /* a CUcontext and a CUgraphExec */
	uint64_t set_current, is_capturing, launch; /* cuCtxSetCurrent, cuStreamIsCapturing, cuGraphLaunch */
} sm_graph;

/* Makes sm_launched use a graph for a pass of a layer. bytes is the size of the struct, whose stream must be 0. */
void sm_keep_graph(uint64_t layer, int32_t kind, const void *pass, uint64_t bytes, const sm_graph *graph);

/* Forgets a graph. No launch of it is in progress when the function returns. */
void sm_drop_graph(uint64_t graph);

/* Launches the graph of a pass on the stream of the pass. Returns 0 if Go must queue the pass: the
 * pass has no graph, its stream is being captured, or the driver refuses the launch. bytes is the
 * size of the struct in this version of the library. */
int sm_launched(uint64_t layer, int32_t kind, const void *pass, uint64_t bytes);

#endif
