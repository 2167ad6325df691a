/* Adapters: checks that a table of adapters changes only the tokens that name an adapter, that a layer
 * with one adapter computes the same gradient with lora_u and without, and the errors of both. */
#define main example
#include "../../../examples/c/layer.c"
#undef main

enum { RANK = 16, PLACES = 2 };

static uint16_t base[T * D], table[T * D], a1[PLACES * E * RANK * D], b1[PLACES * E * 2 * N * RANK], a2[PLACES * E * RANK * N],
	b2[PLACES * E * D * RANK], kept[E * 2 * N * RANK], again[E * 2 * N * RANK];

static uint64_t copied(const void *from, int64_t bytes) {
	uint64_t to = alloc(bytes);
	must("sm_write", sm_write(device, 0, to, from, bytes));
	return to;
}

int main(void) {
	must("sm_open", sm_open("emulated", &device));
	sm_config config = {.size = sizeof config, .hidden = D, .intermediate = N, .num_experts = E, .top_k = K, .without_backward = 1};
	sm_handle layer, of_table, adapted;
	must("sm_layer_new", sm_layer_new(device, &config, &layer));
	config.lora_rank = RANK, config.lora_adapters = PLACES;
	must("sm_layer_new", sm_layer_new(device, &config, &of_table));
	sm_sizes_of sizes = {.size = sizeof sizes};
	must("sm_sizes", sm_sizes(of_table, T, 0, &sizes));
	sm_forward_pass f = {
		.size = sizeof f, .tokens = T, .workspace = alloc(sizes.workspace), .workspace_bytes = sizes.workspace,
		.x = random_numbers(x, T * D, 1), .router = random_numbers(router, E * D, 0.1),
		.w1 = random_numbers(w1, E * 2 * N * D, 0.1), .w2 = random_numbers(w2, E * D * N, 0.1), .scores = alloc(4 * R), .expert_ids = alloc(4 * R), .o = alloc(sizes.o),
	};
	must("sm_forward", sm_forward(layer, &f));
	must("sm_read", sm_read(device, 0, base, f.o, sizeof base));

	/* Tokens name no adapter, the first place, the second place, which is empty, and a place outside the table, in turns. */
	int32_t ids[T], misses = 0, named = 0;
	for (int i = 0; i < T; i++) ids[i] = i % 4 == 3 ? 9 : i % 4 - 1;
	float scales[PLACES] = {2, 0};
	f.lora_a1 = random_numbers(a1, PLACES * E * RANK * D, 0.1), f.lora_b1 = random_numbers(b1, PLACES * E * 2 * N * RANK, 0.1);
	f.lora_a2 = random_numbers(a2, PLACES * E * RANK * N, 0.1), f.lora_b2 = random_numbers(b2, PLACES * E * D * RANK, 0.1);
	f.lora_scales = copied(scales, sizeof scales), f.adapter_misses = copied(&misses, sizeof misses);
	sm_status s = sm_forward(of_table, &f);
	printf("no ids: status %d: %s\n", (int)s, s == SM_OK ? "" : sm_error_text());
	f.adapter_ids = copied(ids, sizeof ids);
	must("sm_forward", sm_forward(of_table, &f));
	must("sm_read", sm_read(device, 0, table, f.o, sizeof table));
	must("sm_read", sm_read(device, 0, &misses, f.adapter_misses, sizeof misses));
	int differ = 0;
	for (int i = 0; i < T; i++) {
		int is = memcmp(base + i * D, table + i * D, 2 * D) != 0;
		differ |= is != (ids[i] == 0);
		named += ids[i] > 0;
	}
	printf("table: %s, %s\n", differ ? "wrong tokens changed" : "only tokens with an adapter changed", misses == named ? "misses counted" : "misses not counted");
	s = sm_forward(layer, &f);
	printf("no table: status %d: %s\n", (int)s, s == SM_OK ? "" : sm_error_text());

	config.lora_adapters = 0, config.lora_alpha = 16, config.without_backward = 0;
	must("sm_layer_new", sm_layer_new(device, &config, &adapted));
	must("sm_sizes", sm_sizes(adapted, T, 0, &sizes));
	f.lora_scales = f.adapter_ids = f.adapter_misses = 0;
	f.h = alloc(sizes.h), f.lora_u = alloc(sizes.lora_u), f.workspace = alloc(sizes.workspace), f.workspace_bytes = sizes.workspace;
	must("sm_forward", sm_forward(adapted, &f));
	sm_backward_pass b = {
		.size = sizeof b, .tokens = T, .workspace = alloc(sizes.backward_workspace), .workspace_bytes = sizes.backward_workspace,
		.x = f.x, .router = f.router, .w1 = f.w1, .w2 = f.w2, .scores = f.scores, .expert_ids = f.expert_ids, .h = f.h, .lora_u = f.lora_u,
		.lora_a1 = f.lora_a1, .lora_b1 = f.lora_b1, .lora_a2 = f.lora_a2, .lora_b2 = f.lora_b2,
		.d_o = f.x, .d_lora_a1 = {alloc(sizeof a1), SM_BF16, 0}, .d_lora_b1 = {alloc(sizeof kept), SM_BF16, 0},
	};
	must("sm_backward", sm_backward(adapted, &b));
	must("sm_read", sm_read(device, 0, kept, b.d_lora_b1.address, sizeof kept));
	b.lora_u = 0;
	must("sm_backward", sm_backward(adapted, &b));
	must("sm_read", sm_read(device, 0, again, b.d_lora_b1.address, sizeof again));
	int other = memcmp(kept, again, sizeof kept) != 0 || sizes.lora_u != 4 * R * RANK;
	printf("lora_u: the gradients %s\n", other ? "differ" : "are equal");
	must("sm_close", sm_close(device));
	return differ || other;
}
