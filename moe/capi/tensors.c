#include "tensors.h"

#include <stddef.h>
#include <string.h>

/* DLPack's structs, version 1. */
typedef struct {
	void *data;
	struct {
		int32_t type, index;
	} device;
	int32_t rank;
	struct {
		uint8_t code, bits;
		uint16_t lanes;
	} type;
	const int64_t *shape, *strides;
	uint64_t offset;
} tensor;

typedef struct {
	uint32_t major, minor;
	const void *previous;
	void *allocate, *from_object, *to_object;
	int (*borrow)(void *object, tensor *out);
	int (*current_stream)(int32_t device_type, int32_t device_index, void **out);
} exchange;

/* Whether a tensor lies densely and is what a plan wants. */
static int fits(const sm_plan *p, const sm_wanted *w, const tensor *t, int64_t tokens) {
	if (t->device.type != p->device_type || t->device.index != p->device_index) return 0;
	if (w->any) return 1;
	if (t->rank != w->rank || t->type.code != w->code || t->type.bits != w->bits || t->type.lanes != 1) return 0;
	int64_t step = 1;
	for (int i = t->rank - 1; i >= 0; i--) {
		if (t->shape[i] != (w->shape[i] < 0 ? tokens : w->shape[i])) return 0;
		if (t->strides != NULL && t->shape[i] != 1 && t->strides[i] != step) return 0;
		step *= t->shape[i];
	}
	return 1;
}

/* Whether an object is of a type whose tensors DLPack's interface knows. */
static int known(const sm_plan *p, void *object) {
	void *type = p->type_of(object);
	p->forget(type);
	return type == p->types[0] || type == p->types[1];
}

/* Writes the tensors' addresses to a pass; 0 where one is not what is wanted. */
static int filled(const sm_plan *p, void *tuple, sm_forward_pass *pass) {
	const exchange *dl = p->exchange;
	for (uint32_t i = 0; i < p->count; i++) {
		const sm_wanted *w = &p->wanted[i];
		void *object = p->item(tuple, i);
		if (object == NULL) return 0;
		if (object == p->none || w->rank == 0) {
			if (object != p->none || w->rank != 0) return 0;
			continue;
		}
		tensor t;
		if (!known(p, object) || dl->borrow(object, &t) != 0) return 0;
		if (i == 0 && t.rank == 2) pass->tokens = t.shape[0];
		if (!fits(p, w, &t, pass->tokens)) return 0;
		uint64_t address = (uint64_t)(uintptr_t)t.data + t.offset;
		memcpy((char *)pass + w->field, &address, sizeof address);
	}
	void *stream = NULL;
	if (dl->current_stream(p->device_type, p->device_index, &stream) != 0) return 0;
	pass->stream = (uint64_t)(uintptr_t)stream;
	return 1;
}

int32_t sm_queue_tensors(const sm_plan *p, void *tuple, int64_t need) {
	sm_forward_pass pass;
	memset(&pass, 0, sizeof pass);
	pass.size = sizeof pass;
	if (!filled(p, tuple, &pass)) {
		p->unraise();
		return -1;
	}
	pass.workspace_bytes = need;
	if (p->inner_routing) {
		pass.scores = pass.workspace + (uint64_t)need;
		pass.expert_ids = pass.scores + (((uint64_t)(pass.tokens * p->top_k) * 4 + 15) & ~(uint64_t)15);
	}
	void *state = p->leave();
	sm_status status = p->queue(p->layer, &pass);
	p->enter(state);
	return (int32_t)status;
}
