/* Packed weights: checks that MXFP4 weights, with and without the buffer of sm_arrange, give the
 * same output as the bf16 weights that the codes stand for. */
#define main example
#include "../../../examples/c/layer.c"
#undef main

static uint8_t codes1[E * 2 * N * D / 2], codes2[E * D * N / 2], scales1[E * 2 * N * D / 32], scales2[E * D * N / 32];
static uint16_t packed[T * D], plain[T * D], arranged[T * D];

static const float numbers[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

/* Fills codes and scales at random, and values with the bf16 weights that they stand for. */
static void quantise(uint8_t *codes, uint8_t *scales, uint16_t *values, int n) {
	for (int i = 0; i < n / 2; i++) codes[i] = (uint8_t)rand();
	for (int i = 0; i < n / 32; i++) scales[i] = (uint8_t)(121 + rand() % 4);
	for (int i = 0; i < n; i++) {
		int code = codes[i / 2] >> (4 * (i % 2)) & 15;
		float v = numbers[code & 7] * ldexpf(code & 8 ? -1 : 1, scales[i / 32] - 127);
		uint32_t bits;
		memcpy(&bits, &v, 4);
		values[i] = (uint16_t)(bits >> 16); /* exact */
	}
}

static uint64_t copied(const void *from, int64_t bytes) {
	uint64_t to = alloc(bytes);
	must("sm_write", sm_write(device, 0, to, from, bytes));
	return to;
}

int main(void) {
	must("sm_open", sm_open("emulated", &device));
	quantise(codes1, scales1, w1, E * 2 * N * D);
	quantise(codes2, scales2, w2, E * D * N);
	sm_config config = {.size = sizeof config, .hidden = D, .intermediate = N, .num_experts = E, .top_k = K, .without_backward = 1};
	sm_handle layer, of_packed;
	must("sm_layer_new", sm_layer_new(device, &config, &layer));
	config.weights = SM_MXFP4;
	must("sm_layer_new", sm_layer_new(device, &config, &of_packed));
	sm_sizes_of sizes = {.size = sizeof sizes};
	must("sm_sizes", sm_sizes(of_packed, T, 0, &sizes));
	sm_forward_pass f = {
		.size = sizeof f, .tokens = T, .workspace = alloc(sizes.workspace), .workspace_bytes = sizes.workspace,
		.x = random_numbers(x, T * D, 1), .router = random_numbers(router, E * D, 0.1),
		.w1 = copied(w1, sizeof w1), .w2 = copied(w2, sizeof w2), .scores = alloc(4 * R), .expert_ids = alloc(4 * R), .o = alloc(sizes.o),
	};
	must("sm_forward", sm_forward(layer, &f));
	must("sm_read", sm_read(device, 0, plain, f.o, sizeof plain));
	f.w1 = copied(codes1, sizeof codes1), f.w2 = copied(codes2, sizeof codes2);
	sm_status s = sm_forward(of_packed, &f);
	printf("no scales: status %d: %s\n", (int)s, s == SM_OK ? "" : sm_error_text());
	f.w1_scale = copied(scales1, sizeof scales1), f.w2_scale = copied(scales2, sizeof scales2);
	must("sm_forward", sm_forward(of_packed, &f));
	must("sm_read", sm_read(device, 0, packed, f.o, sizeof packed));
	f.units = alloc(sizes.units), f.units_bytes = sizes.units;
	must("sm_arrange", sm_arrange(of_packed, &f));
	must("sm_forward", sm_forward(of_packed, &f));
	must("sm_read", sm_read(device, 0, arranged, f.o, sizeof arranged));
	f.units_bytes--;
	s = sm_arrange(of_packed, &f);
	printf("few bytes: status %d: %s\n", (int)s, s == SM_OK ? "" : sm_error_text());
	int differ = memcmp(plain, packed, sizeof plain) != 0 || memcmp(plain, arranged, sizeof plain) != 0;
	printf("packed: the outputs %s\n", differ ? "differ" : "are equal");
	must("sm_close", sm_close(device));
	return differ;
}
