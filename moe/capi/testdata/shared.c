/* A shared expert with a gate: compares its output and the gradient of its W2 with the
 * plain loop of the example. The shared expert has the weights of expert 0. */
#define main example
#include "../../../examples/c/layer.c"
#undef main

static uint16_t gate[D];
static float d_w2[D * N], d_gate[D];

static void read_into(void *to, uint64_t from, int64_t bytes) { must("sm_read", sm_read(device, 0, to, from, bytes)); }

int main(void) {
	must("sm_open", sm_open("emulated", &device));
	sm_config config = {
		.size = sizeof config, .hidden = D, .intermediate = N, .num_experts = E, .top_k = K, .shared_experts = 1, .shared_gate = 1,
	};
	sm_handle layer;
	must("sm_layer_new", sm_layer_new(device, &config, &layer));
	sm_sizes_of sizes = {.size = sizeof sizes};
	must("sm_sizes", sm_sizes(layer, T, 0, &sizes));

	sm_forward_pass f = {
		.size = sizeof f, .tokens = T,
		.workspace = alloc(sizes.backward_workspace), .workspace_bytes = sizes.backward_workspace,
		.x = random_numbers(x, T * D, 1), .router = random_numbers(router, E * D, 0.1),
		.w1 = random_numbers(w1, E * 2 * N * D, 0.1), .w2 = random_numbers(w2, E * D * N, 0.1),
		.scores = alloc(4 * R), .expert_ids = alloc(4 * R), .o = alloc(sizes.o), .h = alloc(sizes.h),
	};
	sm_status s = sm_forward(layer, &f);
	printf("without: status %d: %s\n", (int)s, s == SM_OK ? "" : sm_error_text());
	f.shared_w1 = f.w1, f.shared_w3 = f.w1 + 2 * N * D, f.shared_w2 = f.w2;
	f.shared_gate = random_numbers(gate, D, 0.1), f.shared_h = alloc(sizes.shared_h);
	must("sm_forward", sm_forward(layer, &f));

	static int32_t ids[R];
	static float scores[R];
	static double y[T][D], shared[T][D];
	read_into(ids, f.expert_ids, sizeof ids);
	read_into(scores, f.scores, sizeof scores);
	read_into(o, f.o, sizeof o);
	double off = 0, squares = 0, part = 0;
	for (int t = 0; t < T; t++) {
		double dot = 0;
		for (int c = 0; c < D; c++) dot += wide(x[t * D + c]) * wide(gate[c]);
		for (int k = 0; k < K; k++) expert(ids[t * K + k], scores[t * K + k], x + t * D, y[t]);
		expert(0, 1 / (1 + exp(-dot)), x + t * D, shared[t]);
		for (int c = 0; c < D; c++) {
			double v = wide(o[t * D + c]), want = y[t][c] + shared[t][c];
			off += (v - want) * (v - want);
			squares += v * v;
			part += v * shared[t][c];
		}
	}
	off = sqrt(off / squares);
	printf("forward: o is within %.4f of a loop in double\n", off);

	/* The gradient of o is o itself. The part of o from the shared expert is linear in the shared W2. */
	sm_backward_pass b = {
		.size = sizeof b, .tokens = T, .workspace = f.workspace, .workspace_bytes = f.workspace_bytes,
		.x = f.x, .router = f.router, .w1 = f.w1, .w2 = f.w2,
		.scores = f.scores, .expert_ids = f.expert_ids, .h = f.h, .d_o = f.o,
		.shared_w1 = f.shared_w1, .shared_w3 = f.shared_w3, .shared_w2 = f.shared_w2, .shared_gate = f.shared_gate, .shared_h = f.shared_h,
		.d_shared_w2 = {.address = alloc(sizeof d_w2), .type = SM_F32}, .d_shared_gate = {.address = alloc(sizeof d_gate), .type = SM_F32},
	};
	must("sm_backward", sm_backward(layer, &b));
	read_into(d_w2, b.d_shared_w2.address, sizeof d_w2);
	read_into(d_gate, b.d_shared_gate.address, sizeof d_gate);
	double sum = 0, slope = 0;
	for (int i = 0; i < D * N; i++) sum += (double)d_w2[i] * wide(w2[i]);
	for (int c = 0; c < D; c++) slope += fabs(d_gate[c]);
	printf("backward: sum of W2 times its gradient over what it must be is %.4f\n", sum / part);

	must("sm_close", sm_close(layer));
	must("sm_close", sm_close(device));
	return s == SM_INVALID && off < 1e-2 && fabs(sum / part - 1) < 1e-2 && slope > 0 ? 0 : 1;
}
