/*
 * A forward pass straight from Python's tensors, for the package in python/ alone.
 *
 * What torch's tensors are is asked through DLPack's exchange interface, and what
 * Python needs comes as addresses of its stable interface: the library is built
 * without headers of either, and loads where neither is.
 */
#ifndef SONICMOE_TENSORS_H
#define SONICMOE_TENSORS_H

#include <stdint.h>

#include "sonicmoe.h"

/* The most tensors of a pass. */
enum { SM_TENSORS = 24 };

/* What a tensor of a pass must be, and where in the pass its address goes. */
typedef struct sm_wanted {
	uint32_t field;   /* bytes from the pass's beginning */
	uint8_t code;     /* of its type, as DLPack has it */
	uint8_t bits;
	uint8_t rank;     /* 0 where there must be None */
	uint8_t any;      /* not 0: the caller made it for this pass */
	int64_t shape[3]; /* -1 is the number of tokens */
} sm_wanted;

/* All of a kind of pass that is the same for each of its calls. */
typedef struct sm_plan {
	sm_handle layer;
	/* sm_forward or sm_experts. */
	sm_status (*queue)(sm_handle, const sm_forward_pass *);
	const void *exchange;    /* a DLPackExchangeAPI */
	const void *none;        /* Python's None */
	const void *types[2];    /* the types that a tensor may have */
	void *(*item)(void *tuple, intptr_t i);
	void *(*type_of)(void *);
	void (*forget)(void *);
	void (*unraise)(void);   /* drops the exception of an object that is no tensor */
	void *(*leave)(void);    /* lets other threads of Python run, until enter */
	void (*enter)(void *);
	int32_t device_type, device_index;
	int64_t top_k;
	uint32_t count;          /* of wanted */
	uint32_t inner_routing;  /* not 0: scores and ids lie behind the workspace */
	sm_wanted wanted[SM_TENSORS];
} sm_plan;

/* Queues a pass on the current stream of the plan's device: tuple are the tensors that
 * are wanted, x the first and then the workspace, of which the pass may use need bytes.
 * -1, with nothing queued, where one is not what is wanted. */
int32_t sm_queue_tensors(const sm_plan *plan, void *tuple, int64_t need);

#endif
