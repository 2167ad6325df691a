/*
 * Passes straight from Python's tensors, for the package in python/ alone.
 *
 * What torch's tensors are is asked through DLPack's exchange interface, and what
 * Python needs comes as addresses of its stable interface: the library is built
 * without headers of either, and loads where neither is.
 */
#ifndef SONICMOE_TENSORS_H
#define SONICMOE_TENSORS_H

#include <stdint.h>

#include "sonicmoe.h"

/* The most tensors of a pass, the most parts, and the numbers of tokens whose sizes a plan
 * knows. */
enum { SM_TENSORS = 52, SM_PARTS = 5, SM_KNOWN_SIZES = 64 };

/* x, o and logits come before the weights of a forward pass. */
enum { SM_BEFORE_WEIGHTS = 3 };

/* What may watch a pass: autograd, modes of torch's dispatcher, and who would not see the library. */
enum { SM_WATCHERS = 3 };

/* How a tensor is taken, as bits. */
enum {
	SM_ROWS = 1,     /* [-1, shape[1]] with as many dimensions as the tensor has */
	SM_OPTIONAL = 2, /* may be None */
	SM_GRADIENT = 4, /* its field is an sm_gradient */
	SM_ADDED = 8,    /* and what is there is added to: f32 too */
	SM_KEPT = 16,    /* bytes that hold the plan's parts */
	SM_LISTED = 32   /* its length is the number of entries */
};

/* What a tensor of a pass must be, and where in the pass its address goes. */
typedef struct sm_wanted {
	uint32_t field;   /* bytes from the pass's beginning */
	uint8_t code;     /* of its type, as DLPack has it */
	uint8_t bits;
	uint8_t rank;     /* 0 where there must be None */
	uint8_t how;
	int64_t shape[3]; /* -1 is the number of tokens, -2 that of entries */
} sm_wanted;

/* Memory of a pass that is no tensor of its own: so many bytes a token and an entry, at a
 * multiple of SM_PART_ALIGN. */
typedef struct sm_part {
	int64_t field, token_bytes, entry_bytes;
} sm_part;

enum { SM_PART_ALIGN = 256 };

/* A pass of either direction, which begin alike. */
typedef union sm_pass {
	sm_forward_pass forward;
	sm_backward_pass backward;
	unsigned char bytes[sizeof(sm_backward_pass)];
} sm_pass;

/* How much a pass has to do; a pass without a list has no entries. */
typedef struct sm_work {
	int64_t tokens, entries;
} sm_work;

/* The workspace of so much work; 0 bytes is not known. */
typedef struct sm_known {
	sm_work of;
	int64_t bytes;
} sm_known;

/* What a process with Python has, once for all plans. */
typedef struct sm_python {
	const void *exchange;  /* torch's DLPackExchangeAPI */
	const void *none;      /* Python's None */
	const void *types[2];  /* the types that a tensor may have */
	void *(*pointer_in)(void *capsule, const char *name);
	void *(*number)(long); /* makes one of Python's */
	void *(*type_of)(void *);
	void (*hold)(void *);
	void (*forget)(void *);
	void (*unraise)(void); /* drops the exception of an object that is no tensor */
	void *(*leave)(void);  /* lets other threads of Python run, until enter */
	void (*enter)(void *);
	intptr_t (*length)(void *tuple);
	void *(*item)(void *tuple, intptr_t);
	intptr_t (*integer)(void *);
	void *(*in)(void *dict, const void *key);
	intptr_t (*size)(void *dict);
	void *(*attribute)(void *, const void *name);
	void *(*call)(const void *function, ...);
	/* torch's: the number of the current GPU, a tensor like another, and whether something
	 * watches, which gives 0 or False where it does not. */
	const void *current_device, *empty_like, *watchers[SM_WATCHERS];
	/* The names of what torch's modules keep. */
	const void *modules, *parameters, *buffers;
	/* Tuples of what makes a module's call more than this: names of what it keeps then, or has
	 * something in; and dictionaries that have something then, for modules all. */
	void *hooks, *global_hooks;
} sm_python;

/* Tells the library of Python, before any plan is used. */
void sm_use_python(const sm_python *python);

/* All of a kind of pass that is the same for each of its calls. */
typedef struct sm_plan {
	sm_handle layer;
	/* One of the passes' functions, and sm_sizes. */
	sm_status (*queue)(sm_handle, const void *pass);
	sm_status (*sizes)(sm_handle, int64_t tokens, int64_t entries, sm_sizes_of *);
	int32_t device_type, device_index;
	uint32_t backward;    /* not 0: the pass is an sm_backward_pass */
	uint32_t entries;     /* where in the pass their number goes, 0 without a list */
	uint32_t count;       /* of wanted */
	uint32_t parts_count; /* of parts */
	uint32_t kept;        /* not 0: the parts lie in the tensor that is SM_KEPT, else behind the workspace */
	sm_wanted wanted[SM_TENSORS];
	sm_part parts[SM_PARTS];
	sm_known known[SM_KNOWN_SIZES]; /* each at its tokens and entries modulo SM_KNOWN_SIZES */
	sm_pass pass;                   /* before its tensors are known */
} sm_plan;

/* A function of Python's, METH_FASTCALL, of a capsule with a plan: queues a pass of the
 * tensors that are wanted, the first of which is SM_ROWS, on the current stream of the plan's
 * device. It gives the status, and -1, with nothing queued, where a tensor is not what is
 * wanted. The workspace is torch's and goes back as soon as the pass is queued: what torch
 * puts there next runs behind it, on the same stream. */
void *sm_queue_tensors(void *capsule, void *const *tensors, intptr_t count);

/* The same for a plan of a forward pass without logits that nothing watches: of x [T, d], and all
 * weights, a tuple. It makes o and gives it, or None where another way must be gone, which then
 * says what is wrong. */
void *sm_infer(void *capsule, void *const *arguments, intptr_t count);

/* And of x [..., d], what a module of torch keeps, a dictionary, and the places of its weights in
 * its modules, a tuple of (which weight, (the names of modules on the way, a parameter's or
 * buffer's name)). The other weights are None. A module whose call has hooks goes another way. */
void *sm_infer_module(void *capsule, void *const *arguments, intptr_t count);

#endif
