/*
 * sonicmoe.h: the Mixture-of-Experts layer of package sonicmoe/moe for C, and for
 * languages that call C.
 *
 *     go build -buildmode=c-shared -o libsonicmoe.so ./moe/capi
 *
 * Functions return a status and never abort. After any status other than SM_OK,
 * sm_error_text returns the reason. All functions may be called from any thread.
 * Two threads may run passes of one layer at the same time, with different
 * workspaces.
 *
 * The caller allocates device memory and passes its address; 0 means none. A pass
 * does not allocate device memory, does not wait for the device, and keeps no
 * pointer after it returns, so a CUDA graph can capture it. Tensors are dense,
 * row-major and aligned to 16 bytes. Their shapes follow from the layer and the
 * number of tokens; the library cannot check that the memory is large enough.
 * With T tokens, d hidden, n intermediate, E experts, K experts a token, and
 * R = T*K rows, sorted by expert:
 *
 *     x, o, d_o, dx [T, d]   router [E, d]   w1 [E, 2n, d]   w2 [E, d, n]
 *     scores, d_scores [T, K] f32            expert_ids [T, K] i32
 *     logits [T, E] in the layer's format    d_logits [T, E] f32
 *     h [R, 2n]              router_losses [2] f32
 *     w3 [E, n, d], b3 [E, n] if gate and up are apart; b1 [E, 2n], b2 [E, d]
 *     router_bias, selection_bias, expert_scale and their gradients [E] f32
 *
 * Tensors without a type here have the layer's type, bf16 or f16. Without a gate,
 * 2n is n. `go doc sonicmoe/moe Shapes` explains each tensor, and `go doc sonicmoe/moe Config`
 * each field of sm_config.
 *
 * Every struct begins with its size: set it to sizeof(the struct). A size that ends
 * inside a field is refused. Fields that the struct of an older program does not have
 * count as 0. In fields of a newer program that the library does not know, the library
 * accepts only 0.
 *
 * The library contains a Go runtime, which does not survive a fork without exec: in the
 * child every function fails and says so. Load it in the process that uses it.
 */
#ifndef SONICMOE_H
#define SONICMOE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The handle of a device, a layer or a rank. 0 is no handle. The number of a closed handle is never used again. */
typedef uint64_t sm_handle;

typedef enum sm_status {
	SM_OK = 0,
	SM_INVALID = 1,       /* an argument is wrong; nothing was queued */
	SM_NO_DEVICE = 2,     /* no such device can be used */
	SM_OUT_OF_MEMORY = 3, /* the device has too little memory */
	SM_UNSUPPORTED = 4,   /* this chip, driver or system cannot do it */
	SM_BROKEN = 5,        /* the device can't be used any more */
	SM_FAILED = 6         /* anything else */
} sm_status;

/* Values of fields of sm_config and sm_gradient. */
enum { SM_BF16 = 0, SM_F32 = 1, SM_I32 = 2, SM_F16 = 3, SM_U8 = 4 };
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
enum {
	SM_PLAIN = 0, SM_MXFP4 = 1, SM_FP8 = 2, SM_FP8_UE8M0 = 3, SM_INT4_G32 = 4, SM_INT4_G128 = 5, SM_FP8_TENSOR = 6,
	SM_NVFP4 = 7, SM_UINT4_G32 = 8, SM_UINT4_G128 = 9, SM_UINT4_G32_F16 = 10, SM_UINT4_G128_F16 = 11
};

/* The configuration of a layer: the fields of package moe's Config, in the same
 * order. With 0 in every field after top_k it is the layer of Mixtral and Qwen3-MoE. */
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
	/* Unless 0, the layer has no kernels of backward. */
	int64_t without_backward;
	/* The rule that decides which tokens an expert gets. With SM_NO_ROUNDING an expert
	 * gets the tokens that chose the expert. */
	int64_t rounding_rule, rounding_tile;
	double rounding_capacity;
	int64_t rounding_raw_scores;
	/* The format of w1, w3 and w2. If it is not SM_PLAIN, w1, w3 and w2 are codes, and a
	 * pass also has w1_scale, w3_scale and w2_scale. If the format has zero points or global
	 * scales, a pass also has w1_zero or w1_global, and the same for w3 and w2. Codes have
	 * no gradients. */
	int64_t weights;
	/* The rank of the experts' adapter, 0 for none, and its alpha. Unless 0, lora_rslora
	 * divides alpha by the root of the rank, and not by the rank. w1, w3, w2 and
	 * their biases then have no gradients. */
	int64_t lora_rank;
	double lora_alpha;
	int64_t lora_rslora;
	/* Unless 0, the layer has a table of this many adapters of rank lora_rank, for
	 * inference. lora_alpha and lora_rslora must then be 0. A pass also has lora_scales,
	 * adapter_ids and, unless its address is 0, adapter_misses. */
	int64_t lora_adapters;
} sm_config;

/* The sizes of the buffers of a pass, in bytes. */
typedef struct sm_sizes_of {
	uint64_t size;
	int64_t workspace;          /* of forward; align it to 256 bytes */
	int64_t backward_workspace; /* of backward; also large enough for forward */
	int64_t h, o, scores, expert_ids;
	int64_t rounded_rows;       /* not bytes: the number of entries of the list that rounding writes */
	int64_t shared_h;
	int64_t units;              /* of the buffer for sm_arrange; 0 if the layer cannot use one */
	int64_t lora_u;             /* of the tensor lora_u, which makes backward faster and changes last bits of d_lora_b2; 0 without an adapter */
} sm_sizes_of;

/* The buffers of a forward pass.
 *
 * sm_experts reads scores and expert_ids; the other passes write them. Ids outside
 * [0, E) are skipped. h is for backward, and may be 0 for inference. logits are
 * written unless their address is 0. Backward needs logits if the layer has an
 * expert_scale, or if its scores are not a softmax over the chosen experts.
 *
 * If the layer has lists and entries is above 0, sm_experts reads a list of entries.
 * Entry i is expert expert_ids[i] for token token_indices[i], with weight scores[i].
 * Entries may be in any order. The three tensors are [entries], and R is entries.
 *
 * If the layer has a rounding rule and entries is rounded_rows of sm_sizes, sm_forward
 * rounds. Random numbers depend on seed. The pass needs logits. It writes scores and
 * expert_ids [T, K], and also the rounded list: token_indices, list_expert_ids and
 * list_scores, sorted by expert, then by token. Entries at the end of the list that are
 * not used have no expert. With entries 0 the pass does not round, which is the usual
 * choice for inference. */
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
	/* The weights of the shared experts: gate, up (0 without a gate), down, and the gate
	 * of the shared experts' output. shared_h is written if h is. */
	uint64_t shared_w1, shared_w3, shared_w2, shared_gate;
	uint64_t shared_h;
	uint64_t w1_scale;
	uint64_t w3_scale;
	uint64_t w2_scale;
	uint64_t w1_zero;
	uint64_t w3_zero;
	uint64_t w2_zero;
	uint64_t w1_global;
	uint64_t w3_global;
	uint64_t w2_global;
	/* The buffer that sm_arrange has written, or 0. */
	uint64_t units;
	int64_t units_bytes;
	uint64_t lora_a1;
	uint64_t lora_b1;
	uint64_t lora_b3;
	uint64_t lora_a2;
	uint64_t lora_b2;
	uint64_t adapter_ids;
	uint64_t adapter_misses;
	uint64_t lora_scales;
	uint64_t lora_u;
} sm_forward_pass;

/* The gradient of a weight. type is the layer's type or SM_F32. If accumulate is not 0,
 * the gradient is added to the old values. */
typedef struct sm_gradient {
	uint64_t address;
	int32_t type;
	int32_t accumulate;
} sm_gradient;

/* The buffers of a backward pass: inputs and outputs of forward, the gradient of o,
 * and the gradients to compute. A gradient with address 0 is not computed and costs
 * nothing. balance and z_loss are the coefficients of the losses on the logits. The losses,
 * and router_losses, need logits. */
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
	/* The list that a forward pass with rounding has written. d_scores is then [entries]. */
	uint64_t list_expert_ids, list_scores;
	uint64_t router_bias, expert_scale;
	sm_gradient d_router_bias, d_expert_scale;
	uint64_t shared_w1, shared_w3, shared_w2, shared_gate;
	uint64_t shared_h;
	sm_gradient d_shared_w1, d_shared_w3, d_shared_w2, d_shared_gate;
	/* 0, or the number of tokens of a sequence, which must divide tokens. The balance loss
	 * is then the mean over the sequences. */
	int64_t sequence;
	uint64_t w1_scale;
	uint64_t w3_scale;
	uint64_t w2_scale;
	uint64_t w1_zero;
	uint64_t w3_zero;
	uint64_t w2_zero;
	uint64_t w1_global;
	uint64_t w3_global;
	uint64_t w2_global;
	uint64_t lora_a1;
	uint64_t lora_b1;
	uint64_t lora_b3;
	uint64_t lora_a2;
	uint64_t lora_b2;
	sm_gradient d_lora_a1;
	sm_gradient d_lora_b1;
	sm_gradient d_lora_b3;
	sm_gradient d_lora_a2;
	sm_gradient d_lora_b2;
	uint64_t lora_u;
} sm_backward_pass;

/* Exchanges host memory between ranks, as MPI_Alltoallv does. send has the bytes for all
 * ranks, ordered by rank, and send_bytes has the number of bytes for each rank. receive and
 * receive_bytes are the same for the bytes from each rank. The function returns 0 when
 * receive is complete, and another number if it fails. If *stop becomes another number than
 * 0, it must fail soon. It must not use the memory after it has returned. */
typedef int32_t (*sm_exchange)(
	void *context, const void *send, const int64_t *send_bytes, void *receive, const int64_t *receive_bytes, const volatile int32_t *stop);

/* Allocates bytes of device memory, aligned to 256 bytes, for a pass on a rank. It returns the
 * address, or 0 if it fails. The memory belongs to the program. */
typedef uint64_t (*sm_allocate)(void *context, int64_t bytes);

/* A rank that joins a group. */
typedef struct sm_joining {
	uint64_t size;
	int64_t rank, ranks;
	int64_t max_tokens;  /* the largest number of tokens of a rank in a pass */
	int64_t chunks;      /* the number of chunks of the exchanges, 0 for a choice by size */
	int64_t deadline_ms; /* the longest time of a pass, 0 for a minute */
	const char *address; /* the host and port on which rank 0 listens */
	const char *token;   /* a word that all ranks of the job know */
	sm_exchange exchange; /* NULL if NCCL moves the bytes, which needs a GPU for each rank */
	void *context;       /* the first argument of exchange and of allocate */
	sm_allocate allocate; /* NULL, or the function for passes with h = SM_ALLOCATE */
	int64_t partial_sums; /* 1 to send a sum for each token and rank, 0 to send a row for each expert; O and DX differ in their last bits */
} sm_joining;

/* The field h of a pass whose memory h the rank asks for, when it knows how much it needs. */
#define SM_ALLOCATE 1

/* The sizes of a rank's buffers in bytes, for any number of tokens up to max_tokens, and
 * its experts. */
typedef struct sm_rank_sizes_of {
	uint64_t size;
	int64_t workspace, backward_workspace; /* align both to 256 bytes */
	int64_t saved;        /* of the buffer h, at most */
	int64_t counts;       /* not bytes: the number of words of counts */
	int64_t first_expert, experts;
} sm_rank_sizes_of;

#ifndef SONICMOE_TYPES_ONLY

/* The version of this interface: 1. */
int32_t sm_abi(void);

/* Returns the text of the calling thread's last error. It is valid until the thread's
 * next error. */
const char *sm_error_text(void);

/* Opens a device. "cuda:0" is the first GPU, in its primary context, which PyTorch and
 * the CUDA runtime also use. "emulated" needs no GPU; it is exact and slow. */
sm_status sm_open(const char *name, sm_handle *device);

/* Writes the configuration of the expert layers of a published model, from the text of
 * its config.json on Hugging Face. Weights are laid out as in transformers. If no
 * sm_config describes the model's layers, the error says why. */
sm_status sm_config_of_model(const char *json, sm_config *config);

/* sm_store_layer reads an expert layer from a folder with a published model, config.json and
 * safetensors files, and writes it to one file, path. Layers are counted from 0. Weights that
 * are packed in a format of this interface stay packed; other quantised weights become 16-bit
 * weights. The file is a safetensors file. Its tensors have the names of the fields of
 * sm_forward_pass, and their contents are for the addresses of these fields.
 * sm_config_of_stored reads the configuration of the layer in such a file. */
sm_status sm_store_layer(const char *folder, int64_t number, const char *path);
sm_status sm_config_of_stored(const char *path, sm_config *config);

/* Creates a layer. This emits the layer's kernels, and compiles them or loads them from
 * the cache on disk. It may take seconds. */
sm_status sm_layer_new(sm_handle device, const sm_config *config, sm_handle *layer);

/* Writes the sizes of the buffers for a number of tokens. entries is the number of
 * entries of the list of sm_experts, rounded_rows for a pass that rounds, or 0. */
sm_status sm_sizes(sm_handle layer, int64_t tokens, int64_t entries, sm_sizes_of *sizes);

/* sm_forward queues the router, the experts and their weighted sum. sm_route queues the
 * router alone, and sm_experts the experts alone, with the caller's scores and ids.
 * With K = 1, scores of 1 and ascending ids, sm_experts computes grouped products of
 * rows that are already sorted by expert. */
sm_status sm_forward(sm_handle layer, const sm_forward_pass *pass);
sm_status sm_route(sm_handle layer, const sm_forward_pass *pass);
sm_status sm_experts(sm_handle layer, const sm_forward_pass *pass);

/* Writes packed weights to the buffer units of the pass, in the order in which the kernels
 * for small batches read them. The buffer has units bytes of sm_sizes, aligned to 256. Only
 * stream, weights and units of the pass are used. If later passes have units, sm_forward and
 * sm_experts of small batches read only units. Larger batches still read the weights. The
 * results have the same bits. The function waits for the stream. It refuses scales and zero
 * points that cannot be represented in this order. If a graph captures the function, it neither
 * waits nor refuses: after a launch, the number of such values is a uint32_t 16 bytes before the
 * end of units. */
sm_status sm_arrange(sm_handle layer, const sm_forward_pass *pass);

/* sm_backward queues the gradients of sm_forward, and sm_experts_backward the gradients of
 * sm_experts. In the second case d_scores is the gradient of the caller's scores, and the
 * fields of the router are not read. */
sm_status sm_backward(sm_handle layer, const sm_backward_pass *pass);
sm_status sm_experts_backward(sm_handle layer, const sm_backward_pass *pass);

/* Load balancing without a loss. sm_loads queues a kernel that counts how many tokens chose
 * each expert, from the expert_ids [T, K] of a pass, and adds the counts to loads [E] i32.
 * Call it once for each micro-batch. The caller sets loads to 0 before the first one.
 *
 * sm_update_selection_bias queues one step of the bias; call it once for each step of the
 * optimiser. The selection_bias of an expert grows by rate if its load is below the mean, and
 * falls by rate if its load is above the mean. The loads become 0. DeepSeek-V3 uses a rate of
 * 1e-3. If ranks share the layer, loads must be the sum over the ranks. A graph can capture
 * both functions. */
sm_status sm_loads(sm_handle layer, uint64_t stream, int64_t tokens, uint64_t expert_ids, uint64_t loads);
sm_status sm_update_selection_bias(sm_handle layer, uint64_t stream, uint64_t loads, uint64_t selection_bias, double rate);

/* Layers whose experts are spread over ranks. Every rank has its own tokens, the whole
 * router and a part of the experts. The results have the same bits as on one device that
 * has the tokens of all ranks in order.
 *
 * sm_join meets the other ranks and makes this rank's part of a layer; sm_close ends it.
 * All ranks must make the same calls in the same order. A call that fails on one rank fails
 * on all ranks within the deadline, and then no rank can be used any more. The passes take
 * the structs of passes on one device, with the weights of this rank's experts only. The
 * field h is the address of a buffer whose size is saved in sm_rank_sizes, or 0. It may also
 * be SM_ALLOCATE in a forward pass. The rank then calls allocate of sm_joining with the size
 * that this pass needs, which is less if ranks get similar numbers of tokens; it makes no
 * call if that is 0. counts is host memory, whose number of words is counts in sm_rank_sizes. sm_rank_forward and
 * sm_rank_experts write h and counts, and sm_rank_backward reads them. The gradients of
 * weights are sums over the tokens of all ranks, and the losses are losses over these tokens. The
 * buffer h also has what shared_h has on one device. sm_rank_wait waits for the stream. If it
 * returns an error, the results are not complete. */
sm_status sm_join(sm_handle device, const sm_config *config, const sm_joining *joining, sm_handle *rank);
sm_status sm_rank_sizes(sm_handle rank, sm_rank_sizes_of *sizes);
sm_status sm_rank_forward(sm_handle rank, const sm_forward_pass *pass, int64_t *counts);
sm_status sm_rank_experts(sm_handle rank, const sm_forward_pass *pass, int64_t *counts);
sm_status sm_rank_backward(sm_handle rank, const sm_backward_pass *pass, const int64_t *counts);
sm_status sm_rank_wait(sm_handle rank, uint64_t stream);

/* Stores a layer's kernels in a cache directory ("" or NULL means the default one). It
 * needs no device. It stores PTX, and machine code if NVIDIA's assembler is installed.
 * Layers that use the directory then load the stored kernels. chip is "H200" or "H100". */
sm_status sm_warm(const char *chip, const sm_config *config, const char *directory);

/* Adds a bundle or a cache directory. Layers that are created later search it for their
 * kernels after the default cache directory, and do not compile the kernels that they find.
 * The bundle is only read, and each kernel is checked. The file must not be moved. */
sm_status sm_add_bundle(const char *path);

/* Sets the public key of bundles: the text of a key of the program minisign, or the path of
 * a file with the key. Layers that are created later use only bundles that have a signature
 * by this key, in the file BUNDLE.minisig, and no directory except the default one. The
 * result is an error if a bundle that was already added has no such signature. Without a
 * call of this function, the key is the value of the variable SONICMOE_CACHE_KEY. */
sm_status sm_set_bundle_key(const char *key);

/* Runs a kernel of any PTX text on the emulator, without a device, and reports mistakes of the
 * kernel: deadlocks, races, missing fences and waits, accesses out of bounds. run is a JSON
 * object:
 *   ptx, kernel (absent if the PTX has one), grid, block and cluster ([x, y, z]), shared
 *   (bytes of dynamic shared memory), cooperative (true or false)
 *   buffers: the size of each buffer in bytes. The kernel works on copies, which are written
 *     back.
 *   args: for each parameter an object with one of: buffer (its number) and offset, int, float,
 *     hex (bytes), map (an object with buffer, offset, type, dims, strides, box, swizzle)
 *   pad: true if missing last arguments are 0
 *   check: the number of random orders in addition to the earliest and the latest; 0 runs the
 *     earliest order alone, and looks for no races. explore: instead, a number of systematic
 *     orders. keep, strict, nan, seed, known (["LINE RULE"]): see examples/emulate.
 * buffers has the addresses of the buffers. report receives a JSON object with findings, a
 * list of objects, and printed, the text of the kernel's printf. */
sm_status sm_check_kernel(const char *run, void *const *buffers, char *report, int64_t bytes);

/* Closes a layer, a rank or a device. Later passes of the layer, or of the device's layers, return
 * an error. */
sm_status sm_close(sm_handle any);

/* Device memory for programs without another allocator, for example on the emulated
 * device. New memory has unspecified content. sm_write returns when the caller may change
 * the host's bytes, and sm_read returns when the bytes have arrived on the host. */
sm_status sm_alloc(sm_handle device, int64_t bytes, uint64_t *address);
sm_status sm_free(sm_handle device, uint64_t address);
sm_status sm_write(sm_handle device, uint64_t stream, uint64_t to, const void *from, int64_t bytes);
sm_status sm_read(sm_handle device, uint64_t stream, void *to, uint64_t from, int64_t bytes);

#endif

#ifdef __cplusplus
}
#endif
#endif
