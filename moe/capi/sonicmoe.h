/*
 * sonicmoe.h: the Mixture-of-Experts layer of package sonicmoe/moe for C and
 * whatever calls C.
 *
 *     go build -buildmode=c-shared -o libsonicmoe.so ./moe/capi
 *
 * Functions give a status and never abort: SM_OK, or what went wrong, whose
 * text sm_error_text tells. All may be called from any thread; two threads may
 * run passes of one layer at the same time, on different workspaces.
 *
 * Device memory is the caller's, given by address. No pass allocates any, waits
 * for the device or keeps a pointer after it returns, so passes can be captured
 * in a CUDA graph. Tensors are dense, row-major and aligned to 16 bytes; their
 * shapes follow from the layer and the number of tokens, and the library can't
 * check that so many bytes are there. T tokens, d hidden, n intermediate, E
 * experts, K experts a token, R = T*K rows by expert:
 *
 *     x, o, d_o, dx [T, d]   router [E, d]   w1 [E, 2n, d]   w2 [E, d, n]
 *     scores, d_scores [T, K] f32            expert_ids [T, K] i32
 *     logits [T, E] in the layer's format    d_logits [T, E] f32
 *     h [R, 2n]              router_losses [2] f32
 *     w3 [E, n, d], b3 [E, n] with gate and up apart; b1 [E, 2n], b2 [E, d]
 *     router_bias, selection_bias, expert_scale and their gradients [E] f32
 *
 * and bf16 where nothing is said, n in place of 2n without a gate; the documentation of package moe says what
 * each means. An address of 0 means none.
 *
 * Every struct begins with its size: set it to sizeof(the struct). A library
 * that is newer than the program takes what the program lacks as 0, an older
 * one refuses what it would not know, unless it is 0.
 *
 * A process can hold one Go runtime that may fork, none that goes on after
 * fork without exec: load the library in the process that uses it.
 */
#ifndef SONICMOE_H
#define SONICMOE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A device or a layer; 0 is none. A closed one is an error, never another. */
typedef uint64_t sm_handle;

typedef enum sm_status {
	SM_OK = 0,
	SM_INVALID = 1,       /* an argument is wrong; nothing was queued */
	SM_NO_DEVICE = 2,     /* no such device can be used */
	SM_OUT_OF_MEMORY = 3, /* of the device */
	SM_UNSUPPORTED = 4,   /* beyond this chip, driver or system */
	SM_BROKEN = 5,        /* the device can't be used any more */
	SM_FAILED = 6         /* anything else */
} sm_status;

/* Values of sm_config and sm_gradient, as package moe numbers them. */
enum { SM_BF16 = 0, SM_F32 = 1, SM_I32 = 2, SM_F16 = 3 };
enum { SM_CONCATENATED = 0, SM_INTERLEAVED = 1, SM_APART = 2 };
enum { SM_OUT_IN = 0, SM_IN_OUT = 1 };
enum {
	SM_SWIGLU = 0, SM_SWIGLU_OAI = 1, SM_GEGLU_TANH = 2, SM_GEGLU_ERF = 3, SM_REGLU = 4,
	SM_RELU = 5, SM_RELU2 = 6, SM_SILU = 7, SM_GELU_TANH = 8, SM_GELU_ERF = 9
};
enum { SM_LOGITS_BF16 = 0, SM_LOGITS_F32 = 1, SM_LOGITS_F16 = 2 };
enum { SM_SOFTMAX_TOPK = 0, SM_SOFTMAX_ALL = 1, SM_SIGMOID = 2, SM_SQRT_SOFTPLUS = 3 };
enum { SM_NO_RENORM = 0, SM_RENORM_SUM = 1, SM_RENORM_CLAMP = 2 };
enum { SM_GROUP_BEST = 0, SM_GROUP_SUM_OF_TWO = 1 };
enum {
	SM_NO_ROUNDING = 0, SM_ROUND_NEAREST = 1, SM_ROUND_STOCHASTIC = 2, SM_ROUND_MASS = 3, SM_ROUND_BALANCED = 4,
	SM_ROUND_UP = 5, SM_ROUND_DOWN = 6, SM_EXPERT_CHOICE = 7, SM_CAPACITY_DROP = 8
};

/* What a layer computes: the fields of Config of package moe, in its order. 0
 * in every field after top_k is the layer of Mixtral and Qwen3-MoE. */
typedef struct sm_config {
	uint64_t size;
	int64_t hidden, intermediate, num_experts, top_k;
	int64_t type, gate_up, weight_order, activation;
	double alpha, limit;
	int64_t bias;
	int64_t logits, router_f32, router_bias, score, selection_bias;
	int64_t groups, top_groups, group_score;
	int64_t renormalize;
	double norm_epsilon, score_scale;
	int64_t expert_scale, score_on_input;
	int64_t shared_experts, shared_gate;
	int64_t lists;
	int64_t tokens_hint;
	/* Not 0: leave the kernels of backward out. */
	int64_t without_backward;
	/* Which tokens an expert gets: with 0, SM_NO_ROUNDING, those that chose it. */
	int64_t rounding_rule, rounding_tile;
	double rounding_capacity;
	int64_t rounding_raw_scores;
} sm_config;

/* Bytes that the buffers of a pass must have. */
typedef struct sm_sizes_of {
	uint64_t size;
	int64_t workspace;          /* of forward; aligned to 256 bytes */
	int64_t backward_workspace; /* of backward, enough for forward too */
	int64_t h, o, scores, expert_ids;
	int64_t rounded_rows;       /* not bytes: the entries of the list that rounding writes */
	int64_t shared_h;
} sm_sizes_of;

/* A forward pass. sm_experts reads scores and expert_ids, which the others
 * write; ids outside [0, E) are skipped. h is kept for backward and may be 0 for
 * inference, logits are written unless 0; backward needs them of every layer whose
 * scores are not a softmax over the chosen experts, or have an expert_scale.
 *
 * Where a layer has lists, entries above 0 make sm_experts read a list of so many
 * instead, in any order: entry i is expert expert_ids[i] for token
 * token_indices[i], with weight scores[i]; all three are [entries], and R is
 * entries.
 *
 * Where a layer rounds, entries of rounded_rows make sm_forward round, drawing
 * from seed: it writes token_indices, list_expert_ids and list_scores, by expert,
 * then token, and behind them entries without expert, beside scores and
 * expert_ids [T, K]; logits must be there too. Without entries it does not round,
 * as where a model is used. */
typedef struct sm_forward_pass {
	uint64_t size;
	int64_t tokens;
	uint64_t stream; /* a CUstream; 0 is the legacy default stream */
	uint64_t workspace;
	int64_t workspace_bytes;
	uint64_t x, router, w1, w2;
	uint64_t scores, expert_ids, logits;
	uint64_t o, h;
	int64_t entries;
	uint64_t token_indices;
	uint64_t w3, b1, b3, b2;
	uint64_t list_expert_ids, list_scores;
	uint64_t seed;
	uint64_t router_bias, selection_bias, expert_scale;
	/* Of shared experts: their gate, up (0 without a gate), down and own gate;
	 * shared_h goes with h. */
	uint64_t shared_w1, shared_w3, shared_w2, shared_gate;
	uint64_t shared_h;
} sm_forward_pass;

/* A gradient of weights to make: the layer's type or SM_F32, added to what is there
 * where accumulate is not 0. */
typedef struct sm_gradient {
	uint64_t address;
	int32_t type;
	int32_t accumulate;
} sm_gradient;

/* A backward pass: what forward was given and gave, the gradient of o, and the
 * gradients that are wanted: 0 is not, and costs nothing. balance and z_loss are
 * coefficients of losses on the logits. */
typedef struct sm_backward_pass {
	uint64_t size;
	int64_t tokens;
	uint64_t stream;
	uint64_t workspace;
	int64_t workspace_bytes;
	uint64_t x, router, w1, w2;
	uint64_t scores, expert_ids, logits;
	uint64_t d_o, h;
	uint64_t dx, d_scores, d_logits, router_losses;
	sm_gradient d_router, d_w1, d_w2;
	double balance, z_loss;
	int64_t entries;
	uint64_t token_indices;
	uint64_t w3, b1, b3, b2;
	sm_gradient d_w3, d_b1, d_b3, d_b2;
	/* Of a pass that rounded; its d_scores are [entries]. */
	uint64_t list_expert_ids, list_scores;
	uint64_t router_bias, expert_scale;
	sm_gradient d_router_bias, d_expert_scale;
	uint64_t shared_w1, shared_w3, shared_w2, shared_gate;
	uint64_t shared_h;
	sm_gradient d_shared_w1, d_shared_w3, d_shared_w2, d_shared_gate;
} sm_backward_pass;

#ifndef SONICMOE_TYPES_ONLY

/* The version of this interface: 1. */
int32_t sm_abi(void);

/* What went wrong in the calling thread's last function that failed, in words;
 * valid until the thread's next one that fails. */
const char *sm_error_text(void);

/* Opens a device: "cuda:0" is the first GPU, in its primary context, which is
 * PyTorch's and the CUDA runtime's; "emulated" one that needs no hardware and is
 * slow and exact. */
sm_status sm_open(const char *name, sm_handle *device);

/* Writes what a published model's config.json, as Hugging Face keeps it, says of its
 * expert layers: experts, router and shared experts, laid out as transformers holds
 * their weights. A model whose layers are not those of a config is an error that says
 * why. */
sm_status sm_config_of_model(const char *json, sm_config *config);

/* Makes a layer: emits its kernels and compiles or loads them, from the cache
 * on disk where that has them. It may take seconds. */
sm_status sm_layer_new(sm_handle device, const sm_config *config, sm_handle *layer);

/* Sizes for so many tokens, and for a list of so many entries unless 0: one given
 * to sm_experts, or the rounded_rows that rounding writes. */
sm_status sm_sizes(sm_handle layer, int64_t tokens, int64_t entries, sm_sizes_of *sizes);

/* Router, experts and their weighted sum; or the router alone; or the experts
 * alone, with scores and ids from anywhere. With K = 1, scores of 1 and ids that
 * don't fall, that is the grouped products on rows that lie by expert already. */
sm_status sm_forward(sm_handle layer, const sm_forward_pass *pass);
sm_status sm_route(sm_handle layer, const sm_forward_pass *pass);
sm_status sm_experts(sm_handle layer, const sm_forward_pass *pass);

/* Gradients after sm_forward, or after sm_experts: then d_scores are the
 * gradients of the scores, and nothing of the router is looked at. */
sm_status sm_backward(sm_handle layer, const sm_backward_pass *pass);
sm_status sm_experts_backward(sm_handle layer, const sm_backward_pass *pass);

/* Stores a layer's kernels in a cache directory ("" or NULL is the default one),
 * without a device, for one to find: PTX, and machine code where NVIDIA's
 * assembler is found. chip is "H200" or "H100". */
sm_status sm_warm(const char *chip, const sm_config *config, const char *directory);

/* Lets layers that are made from then on look for their kernels in a bundle, or a
 * cache directory of somebody else's, after the cache on disk: what is there compiles
 * nothing. It is only read, each kernel is checked, and it must stay where it is. */
sm_status sm_add_bundle(const char *path);

/* Closes a layer, or a device; passes of its layers are errors from then on. */
sm_status sm_close(sm_handle any);

/* Device memory for programs that have no other allocator, on the emulated
 * device above all. Content is unspecified. Both copies return when the bytes
 * of the host may be reused, or are there. */
sm_status sm_alloc(sm_handle device, int64_t bytes, uint64_t *address);
sm_status sm_free(sm_handle device, uint64_t address);
sm_status sm_write(sm_handle device, uint64_t stream, uint64_t to, const void *from, int64_t bytes);
sm_status sm_read(sm_handle device, uint64_t stream, void *to, uint64_t from, int64_t bytes);

#endif

#ifdef __cplusplus
}
#endif
#endif
