#include "tensors.h"
#include "text.h"

#include <pthread.h>
#include <string.h>

/* The structs of DLPack, version 1, and the number that means CUDA devices in DLPack. */
enum { DL_CUDA = 2 };

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

typedef struct owned {
	uint32_t major, minor;
	void *owner;
	void (*release)(struct owned *);
	uint64_t flags;
	tensor of;
} owned;

typedef struct {
	uint32_t major, minor;
	const void *previous;
	int (*allocate)(const tensor *like, owned **out, void *context, void (*fail)(void *context, const char *kind, const char *text));
	void *from_object, *to_object;
	int (*borrow)(void *object, tensor *out);
	int (*current_stream)(int32_t device_type, int32_t device_index, void **out);
} exchange;

static sm_python python;

void sm_use_python(const sm_python *p) { python = *p; }

static uint64_t address(const tensor *t) { return (uint64_t)(uintptr_t)t->data + t->offset; }

/* Whether a tensor is dense and has the device, type and shape that the plan wants. A tensor of
 * tokens may have several dimensions, such as batch and sequence. */
static int fits(const sm_plan *p, const sm_wanted *w, const tensor *t, sm_work of) {
	if (t->device.type != p->device_type || t->device.index != p->device_index) return 0;
	int own = t->type.code == w->code && t->type.bits == w->bits;
	int single = w->how & SM_ADDED && t->type.code == 2 && t->type.bits == 32;
	if (t->type.lanes != 1 || !(own || single)) return 0;
	int64_t step = 1, rows = 1;
	for (int i = t->rank - 1; i >= 0; i--) {
		if (t->strides != NULL && t->shape[i] != 1 && t->strides[i] != step) return 0;
		step *= t->shape[i];
		if (i < t->rank - 1) rows *= t->shape[i];
	}
	if (w->how & SM_ROWS) return t->rank > 1 && t->shape[t->rank - 1] == w->shape[1] && rows == of.tokens;
	if (t->rank != w->rank) return 0;
	if (w->how & SM_KEPT) return 1;
	for (int i = 0; i < t->rank; i++)
		if (t->shape[i] != (w->shape[i] == -1 ? of.tokens : w->shape[i] == -2 ? of.entries : w->shape[i])) return 0;
	return 1;
}

/* Returns the number of tokens of x. */
static int64_t tokens_of(const tensor *x) {
	int64_t n = 1;
	for (int i = 0; i < x->rank - 1; i++) n *= x->shape[i];
	return n;
}

/* Whether an object has a type that DLPack's interface can read. */
static int known(void *object) {
	void *type = python.type_of(object);
	python.forget(type);
	return type == python.types[0] || type == python.types[1];
}

static void put(sm_pass *pass, int64_t field, uint64_t at) { memcpy(pass->bytes + field, &at, sizeof at); }

/* Sets the addresses of a pass's parts, which begin at the address from. Returns their size in bytes. */
static int64_t lay_parts(const sm_plan *p, sm_pass *pass, sm_work of, uint64_t from) {
	int64_t at = 0;
	for (uint32_t i = 0; i < p->parts_count; i++) {
		const sm_part *part = &p->parts[i];
		put(pass, part->field, from + (uint64_t)at);
		at += (part->token_bytes * of.tokens + part->entry_bytes * of.entries + SM_PART_ALIGN - 1) & -(int64_t)SM_PART_ALIGN;
	}
	return at;
}

/* Returns the number of a tensor's type in sm_gradient. */
static int32_t gradient_type(const tensor *t) { return t->type.code == 4 ? SM_BF16 : t->type.bits == 32 ? SM_F32 : SM_F16; }

/* Writes the address of a tensor to its field of the pass. Returns 0 if the tensor is memory for parts that is too small. */
static int taken(const sm_plan *p, const sm_wanted *w, const tensor *t, sm_work of, sm_pass *pass) {
	if (w->how & SM_KEPT) return lay_parts(p, pass, of, address(t)) <= t->shape[0];
	put(pass, w->field, address(t));
	if (w->how & SM_GRADIENT) {
		sm_gradient g = {address(t), gradient_type(t), (w->how & SM_ADDED) != 0};
		memcpy(pass->bytes + w->field, &g, sizeof g);
	}
	return 1;
}

/* Fills a pass: the tensors' addresses, the size of the pass and the stream. Returns 0 if a tensor does not fit the plan. */
static int filled(const sm_plan *p, void *const *tensors, sm_pass *pass, sm_work *of) {
	const exchange *dl = python.exchange;
	for (uint32_t i = 0; i < p->count; i++) {
		const sm_wanted *w = &p->wanted[i];
		if (tensors[i] == python.none) {
			if (w->rank != 0 && !(w->how & SM_OPTIONAL)) return 0;
			continue;
		}
		tensor t;
		if (w->rank == 0 || !known(tensors[i]) || dl->borrow(tensors[i], &t) != 0) return 0;
		if (i == 0) of->tokens = tokens_of(&t);
		if (w->how & SM_LISTED) of->entries = t.rank == 1 ? t.shape[0] : 0;
		if (!fits(p, w, &t, *of) || !taken(p, w, &t, *of, pass)) return 0;
	}
	pass->forward.tokens = of->tokens;
	if (p->entries != 0) {
		if (of->entries == 0) return 0;
		put(pass, p->entries, (uint64_t)of->entries);
	}
	void *stream = NULL;
	if (dl->current_stream(p->device_type, p->device_index, &stream) != 0) return 0;
	pass->forward.stream = (uint64_t)(uintptr_t)stream;
	return 1;
}

/* Returns the bytes of workspace of a pass, or -1 if the layer refuses a pass of that size. */
static int64_t workspace_of(sm_plan *p, sm_work of) {
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	sm_sizes_of s = {.size = sizeof s};
	sm_known *known = &p->known[(of.tokens + of.entries) % SM_KNOWN_SIZES];
	int64_t bytes = -1;
	pthread_mutex_lock(&lock);
	if (known->bytes == 0 || known->of.tokens != of.tokens || known->of.entries != of.entries) {
		if (p->sizes(p->layer, of.tokens, of.entries, &s) == SM_OK)
			*known = (sm_known){of, ((p->backward ? s.backward_workspace : s.workspace) + SM_PART_ALIGN - 1) & -(int64_t)SM_PART_ALIGN};
	}
	if (known->of.tokens == of.tokens && known->of.entries == of.entries && known->bytes != 0) bytes = known->bytes;
	pthread_mutex_unlock(&lock);
	return bytes;
}

static void no_room(void *context, const char *kind, const char *text) { (void)context, (void)kind, (void)text; }

/* Allocates the workspace of a pass, followed by memory for the parts unless a tensor holds the
 * parts. The caller releases the memory. Returns NULL if the allocation fails. */
static owned *lend_workspace(sm_plan *p, sm_work of, sm_pass *pass) {
	const exchange *dl = python.exchange;
	int64_t need = workspace_of(p, of);
	if (need < 0 || dl->allocate == NULL) return NULL;
	int64_t bytes = p->kept ? need : need + lay_parts(p, pass, of, 0);
	tensor like = {.device = {p->device_type, p->device_index}, .rank = 1, .type = {1, 8, 1}, .shape = &bytes};
	owned *room = NULL;
	if (dl->allocate(&like, &room, NULL, no_room) != 0 || room == NULL) return NULL;
	pass->forward.workspace = address(&room->of);
	pass->forward.workspace_bytes = need;
	if (!p->kept) lay_parts(p, pass, of, pass->forward.workspace + (uint64_t)need);
	return room;
}

/* Queues a pass of tensors and returns its status, or -1 if a tensor does not fit the plan. */
static long queue(sm_plan *p, void *const *tensors) {
	sm_pass pass = p->pass;
	sm_work of = {0, 0};
	owned *room = NULL;
	if (!filled(p, tensors, &pass, &of) || (room = lend_workspace(p, of, &pass)) == NULL) {
		python.unraise();
		return -1;
	}
	void *state = python.leave();
	sm_status status = p->queue(p->layer, &pass);
	python.enter(state);
	room->release(room);
	return (long)status;
}

void *sm_queue_tensors(void *capsule, void *const *tensors, intptr_t count) {
	sm_plan *p = python.pointer_in(capsule, NULL);
	return python.number(count == p->count ? queue(p, tensors) : -1);
}

/* Returns an object's dictionary as a borrowed reference. */
static void *kept_by(void *object, const void *name) {
	void *dict = python.attribute(object, name);
	if (dict != NULL) python.forget(dict);
	return dict;
}

/* Returns the parameter or buffer at a place, or NULL. */
static void *weight_at(void *modules, void *place) {
	void *way = python.item(place, 0), *name = python.item(place, 1), *module = NULL;
	for (intptr_t i = 0; i < python.length(way); i++) {
		if (module != NULL && (modules = kept_by(module, python.modules)) == NULL) return NULL;
		if ((module = python.in(modules, python.item(way, i))) == NULL) return NULL;
	}
	void *parameters = module ? kept_by(module, python.parameters) : NULL, *found = parameters ? python.in(parameters, name) : NULL;
	void *buffers = parameters && !found ? kept_by(module, python.buffers) : NULL;
	return buffers ? python.in(buffers, name) : found;
}

/* Stores a new reference to each weight in tensors, after x, o and logits. Returns 0 if a weight is missing. */
static int hold_weights(const sm_plan *p, void *modules, void *places, void **tensors) {
	for (intptr_t i = 0; i < python.length(places); i++) {
		void *of = python.item(places, i), *weight = weight_at(modules, python.item(of, 1));
		intptr_t which = SM_BEFORE_WEIGHTS + python.integer(python.item(of, 0));
		if (weight == NULL || which < SM_BEFORE_WEIGHTS || which >= p->count || tensors[which] != python.none) return 0;
		python.hold(tensors[which] = weight);
	}
	return 1;
}

/* Calls a Python function and returns its result as an integer, or -1 if it is not one. */
static intptr_t answer(const void *function) {
	void *given = python.call(function, NULL);
	intptr_t number = given != NULL ? python.integer(given) : -1;
	if (given != NULL) python.forget(given);
	return number;
}

/* Returns the plan of a capsule, or NULL if a pass of x must not use the plan. This is so if something
 * observes the pass (autograd does not count if recorded is not 0), and if the plan's device is not
 * torch's current device: a pass makes the device's context current on this thread, and torch must agree. */
static sm_plan *unwatched(void *capsule, void *x, int recorded) {
	if (sm_forked || !known(x)) return NULL;
	for (int i = 0; i < SM_WATCHERS; i++)
		if (answer(python.watchers[i]) != (i == 0 && recorded)) return NULL;
	sm_plan *p = python.pointer_in(capsule, NULL);
	return p->device_type != DL_CUDA || answer(python.current_device) == p->device_index ? p : NULL;
}

/* Queues a pass of x and the weights in tensors and returns its output, or NULL if it was not queued. */
static void *output(sm_plan *p, void *x, void **tensors) {
	void *o = python.call(python.empty_like, x, NULL);
	tensors[0] = x, tensors[1] = o, tensors[2] = (void *)python.none;
	if (o == NULL || queue(p, tensors) == SM_OK) return o;
	python.forget(o);
	return NULL;
}

static void *or_none(void *o) {
	if (o != NULL) return o;
	python.unraise();
	python.hold((void *)python.none);
	return (void *)python.none;
}

void *sm_infer(void *capsule, void *const *arguments, intptr_t count) {
	sm_plan *p = count == 2 ? unwatched(capsule, arguments[0], 0) : NULL;
	const exchange *dl = python.exchange;
	void *tensors[SM_TENSORS];
	tensor x;
	if (p == NULL || dl->borrow(arguments[0], &x) != 0 || x.rank != 2 || python.length(arguments[1]) != p->count - SM_BEFORE_WEIGHTS) return or_none(NULL);
	for (uint32_t i = SM_BEFORE_WEIGHTS; i < p->count; i++) tensors[i] = python.item(arguments[1], i - SM_BEFORE_WEIGHTS);
	return or_none(output(p, arguments[0], tensors));
}

/* Whether the call of a module with these attributes has hooks or is replaced. */
static int hooked(void *kept) {
	for (intptr_t i = 0; i < python.length(python.hooks); i++) {
		void *of = python.in(kept, python.item(python.hooks, i));
		if (of != NULL && of != python.none && python.size(of) != 0) return 1;
	}
	for (intptr_t i = 0; i < python.length(python.global_hooks); i++)
		if (python.size(python.item(python.global_hooks, i)) != 0) return 1;
	return 0;
}

void *sm_infer_module(void *capsule, void *const *arguments, intptr_t count) {
	sm_plan *p = count == 3 ? unwatched(capsule, arguments[0], 0) : NULL;
	void *modules = p != NULL && !hooked(arguments[1]) ? python.in(arguments[1], python.modules) : NULL, *tensors[SM_TENSORS];
	if (modules == NULL) return or_none(NULL);
	for (uint32_t i = SM_BEFORE_WEIGHTS; i < p->count; i++) tensors[i] = (void *)python.none;
	void *o = hold_weights(p, modules, arguments[2], tensors) ? output(p, arguments[0], tensors) : NULL;
	for (uint32_t i = SM_BEFORE_WEIGHTS; i < p->count; i++)
		if (tensors[i] != python.none) python.forget(tensors[i]);
	return or_none(o);
}

void *sm_weights_of(void *capsule, void *const *arguments, intptr_t count) {
	sm_plan *p = count == 3 ? unwatched(capsule, arguments[0], 1) : NULL;
	void *modules = p != NULL && !hooked(arguments[1]) ? python.in(arguments[1], python.modules) : NULL;
	intptr_t length = modules != NULL ? python.length(arguments[2]) : 0;
	void *weights = length > 0 ? python.tuple(length) : NULL;
	for (intptr_t i = 0; i < length && weights != NULL; i++) {
		void *weight = weight_at(modules, python.item(python.item(arguments[2], i), 1));
		if (weight == NULL) {
			python.forget(weights);
			weights = NULL;
		} else {
			python.hold(weight);
			python.set(weights, i, weight);
		}
	}
	return or_none(weights);
}
