/*
 * Passes directly from Python's tensors. Only the package in python/ uses this.
 *
 * The library reads torch's tensors through DLPack's exchange interface. It gets the
 * addresses of functions of Python's stable interface, so it builds without headers
 * of Python or torch, and loads in processes that have neither.
 */
#ifndef SONICMOE_TENSORS_H
#define SONICMOE_TENSORS_H

#include <stdint.h>

#include "sonicmoe.h"

/* The largest number of tensors of a pass, the largest number of its parts (see sm_part), and
 * the number of workspace sizes that a plan remembers. */
enum { SM_TENSORS = 96, SM_PARTS = 6, SM_KNOWN_SIZES = 64 };

/* The number of tensors before the weights in a forward pass: x, o and logits. */
enum { SM_BEFORE_WEIGHTS = 3 };

/* The number of functions that report whether something observes a pass: autograd, which is the
 * first, modes of torch's dispatcher, and observers to which the library's passes would be invisible. */
enum { SM_WATCHERS = 3 };

/* Bits that say how a tensor is passed. */
enum {
	SM_ROWS = 1,     /* any number of dimensions, the last one is shape[1] */
	SM_OPTIONAL = 2, /* may be None */
	SM_GRADIENT = 4, /* its field is an sm_gradient */
	SM_ADDED = 8,    /* the gradient is added to the old values; may also be f32 */
	SM_KEPT = 16,    /* the tensor is the memory of the plan's parts */
	SM_LISTED = 32   /* its length is the number of list entries */
};

/* The type and shape that a tensor of a pass must have, and the field for its address. */
typedef struct sm_wanted {
	uint32_t field;   /* offset in the pass, in bytes */
	uint8_t code;     /* DLPack's code of the type */
	uint8_t bits;
	uint8_t rank;     /* 0 if the argument must be None */
	uint8_t how;
	int64_t shape[3]; /* -1 is the number of tokens, -2 the number of entries */
} sm_wanted;

/* A part of a pass: memory that is no tensor of its own. A part has token_bytes bytes for each
 * token and entry_bytes bytes for each list entry, and starts at a multiple of SM_PART_ALIGN. */
typedef struct sm_part {
	int64_t field, token_bytes, entry_bytes;
} sm_part;

enum { SM_PART_ALIGN = 256 };

/* A forward or a backward pass. Both structs begin with the same fields. */
typedef union sm_pass {
	sm_forward_pass forward;
	sm_backward_pass backward;
	unsigned char bytes[sizeof(sm_backward_pass)];
} sm_pass;

/* The size of a pass: its numbers of tokens and of list entries. A pass without a list has 0 entries. */
typedef struct sm_work {
	int64_t tokens, entries;
} sm_work;

/* The bytes of workspace of a pass of a size. 0 bytes means that they are not known. */
typedef struct sm_known {
	sm_work of;
	int64_t bytes;
} sm_known;

/* Addresses of functions and objects of Python and torch, set once for all plans. */
typedef struct sm_python {
	const void *exchange;  /* torch's DLPackExchangeAPI */
	const void *none;      /* Python's None */
	const void *types[2];  /* the types that a tensor may have */
	void *(*pointer_in)(void *capsule, const char *name);
	void *(*number)(long); /* returns a Python int */
	void *(*type_of)(void *);
	void (*hold)(void *);
	void (*forget)(void *);
	void (*unraise)(void); /* clears the exception that an object that is no tensor caused */
	void *(*leave)(void);  /* lets other Python threads run until enter */
	void (*enter)(void *);
	intptr_t (*length)(void *tuple);
	void *(*item)(void *tuple, intptr_t);
	void *(*tuple)(intptr_t length);
	int (*set)(void *tuple, intptr_t, void *owned); /* for a new tuple */
	intptr_t (*integer)(void *);
	void *(*in)(void *dict, const void *key);
	intptr_t (*size)(void *dict);
	void *(*attribute)(void *, const void *name);
	void *(*call)(const void *function, ...);
	/* Functions of torch: the number of the current GPU, a new tensor like another one, and
	 * the functions that return 0 or False if nothing observes a pass. */
	const void *current_device, *empty_like, *watchers[SM_WATCHERS];
	/* The names of a module's dictionaries. */
	const void *modules, *parameters, *buffers;
	/* Two tuples for finding hooks of a module's call. hooks has names of attributes; one of
	 * them is set or not empty if the module has a hook. global_hooks has dictionaries; one of
	 * them is not empty if all modules have a hook. */
	void *hooks, *global_hooks;
} sm_python;

/* Passes the addresses to the library, before any plan is used. */
void sm_use_python(const sm_python *python);

/* The properties that all passes of one kind, of one layer, share. */
typedef struct sm_plan {
	sm_handle layer;
	/* queue is the function of the pass, such as sm_forward. sizes is sm_sizes. */
	sm_status (*queue)(sm_handle, const void *pass);
	sm_status (*sizes)(sm_handle, int64_t tokens, int64_t entries, sm_sizes_of *);
	int32_t device_type, device_index;
	uint32_t backward;    /* not 0: the pass is an sm_backward_pass */
	uint32_t entries;     /* offset of the field for the number of entries, 0 without a list */
	uint32_t count;       /* the length of wanted */
	uint32_t parts_count; /* the length of parts */
	uint32_t kept;        /* not 0: the parts are in the tensor with SM_KEPT; 0: they follow the workspace */
	sm_wanted wanted[SM_TENSORS];
	sm_part parts[SM_PARTS];
	sm_known known[SM_KNOWN_SIZES]; /* indexed by tokens + entries, modulo SM_KNOWN_SIZES */
	sm_pass pass;                   /* the fields that do not depend on tensors */
} sm_plan;

/* A Python builtin (METH_FASTCALL) whose first argument is a capsule with a plan. It queues a
 * pass of the tensors on the current stream of the plan's device. The first tensor must have
 * SM_ROWS. The result is the status, or -1 without queueing anything if a tensor does not fit
 * the plan. Torch allocates the workspace, and gets it back as soon as the pass is queued. This
 * is safe because torch uses the memory again only on the same stream, after the pass. */
void *sm_queue_tensors(void *capsule, void *const *tensors, intptr_t count);

/* Like sm_queue_tensors, for a forward pass without logits that nothing observes. The arguments
 * are x [T, d] and a tuple of all weights. The result is a new tensor o, or None if the caller
 * must use another way, which then reports any error. */
void *sm_infer(void *capsule, void *const *arguments, intptr_t count);

/* Like sm_infer, for x [..., d], the dictionary of a torch module, and the places of its weights: a
 * tuple of (number of the weight, (names of the modules on the path, name of the parameter or
 * buffer)). Weights without a place are None. If the module's call has hooks, the result is None. */
void *sm_infer_module(void *capsule, void *const *arguments, intptr_t count);

/* Returns the weights of a module, for a pass of x that autograd records, as a tuple in the order
 * of their places. Returns None if the caller must find the weights. The arguments are the same as
 * for sm_infer_module. */
void *sm_weights_of(void *capsule, void *const *arguments, intptr_t count);

#endif
