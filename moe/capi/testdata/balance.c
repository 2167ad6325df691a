/* Load balancing: compares the loss of sequences with its formula in double, and the loads and
 * the selection bias with counts of the ids. */
#define main example
#include "../../../examples/c/layer.c"
#undef main

enum { SEQUENCE = 8, FIRST = 10 };

static void read_into(void *to, uint64_t from, int64_t bytes) { must("sm_read", sm_read(device, 0, to, from, bytes)); }

/* Returns the balance loss as the mean over sequences of that many tokens. */
static double balance(int length, uint16_t logits[T][E]) {
	double sum = 0;
	for (int first = 0; first < T; first += length) {
		int count[E] = {0};
		for (int i = first * K; i < (first + length) * K; i++) count[ids[i]]++;
		for (int t = first; t < first + length; t++) {
			double all = 0, dot = 0;
			for (int e = 0; e < E; e++) {
				double p = exp(wide(logits[t][e]));
				all += p;
				dot += p * count[e];
			}
			sum += dot / all;
		}
	}
	return sum * E / ((double)K * length * T);
}

int main(void) {
	must("sm_open", sm_open("emulated", &device));
	sm_config config = {
		.size = sizeof config, .hidden = D, .intermediate = N, .num_experts = E, .top_k = K, .score = SM_SIGMOID, .selection_bias = 1,
	};
	sm_handle layer;
	must("sm_layer_new", sm_layer_new(device, &config, &layer));
	sm_sizes_of sizes = {.size = sizeof sizes};
	must("sm_sizes", sm_sizes(layer, T, 0, &sizes));
	static float bias[E] = {0.3f, 0.2f, -0.1f, 0}, changed[E], losses[2];
	static int32_t loads[E], left[E];
	static uint16_t logits[T][E];
	sm_forward_pass f = {
		.size = sizeof f, .tokens = T,
		.workspace = alloc(sizes.backward_workspace), .workspace_bytes = sizes.backward_workspace,
		.x = random_numbers(x, T * D, 1), .router = random_numbers(router, E * D, 0.1),
		.w1 = random_numbers(w1, E * 2 * N * D, 0.1), .w2 = random_numbers(w2, E * D * N, 0.1),
		.scores = alloc(sizes.scores), .expert_ids = alloc(sizes.expert_ids), .logits = alloc(sizeof logits),
		.o = alloc(sizes.o), .h = alloc(sizes.h), .selection_bias = alloc(sizeof bias),
	};
	must("sm_write", sm_write(device, 0, f.selection_bias, bias, sizeof bias));
	must("sm_forward", sm_forward(layer, &f));
	read_into(ids, f.expert_ids, sizeof ids);
	read_into(logits, f.logits, sizeof logits);

	sm_backward_pass b = {
		.size = sizeof b, .tokens = T, .workspace = f.workspace, .workspace_bytes = f.workspace_bytes,
		.x = f.x, .router = f.router, .w1 = f.w1, .w2 = f.w2,
		.scores = f.scores, .expert_ids = f.expert_ids, .logits = f.logits, .h = f.h, .d_o = f.o,
		.dx = alloc(sizeof dx), .router_losses = alloc(sizeof losses), .balance = 0.5,
	};
	double off = 0;
	for (int i = 0; i < 2; i++) {
		b.sequence = i == 0 ? 0 : SEQUENCE;
		must("sm_backward", sm_backward(layer, &b));
		read_into(losses, b.router_losses, sizeof losses);
		double want = balance(i == 0 ? T : SEQUENCE, logits);
		off = fmax(off, fabs(losses[0] / want - 1));
		printf("balance loss of sequences of %d tokens: %.4f, in double %.4f\n", i == 0 ? T : SEQUENCE, losses[0], want);
	}
	b.sequence = 5;
	sm_status s = sm_backward(layer, &b);
	printf("sequence: status %d: %s\n", (int)s, s == SM_OK ? "" : sm_error_text());

	/* A step of two micro-batches. */
	uint64_t counted = alloc(sizeof loads);
	must("sm_write", sm_write(device, 0, counted, left, sizeof left));
	must("sm_loads", sm_loads(layer, 0, FIRST, f.expert_ids, counted));
	must("sm_loads", sm_loads(layer, 0, T - FIRST, f.expert_ids + 4 * FIRST * K, counted));
	read_into(loads, counted, sizeof loads);
	must("sm_update_selection_bias", sm_update_selection_bias(layer, 0, counted, f.selection_bias, 0.25));
	read_into(changed, f.selection_bias, sizeof changed);
	read_into(left, counted, sizeof left);
	int wrong = 0;
	for (int e = 0; e < E; e++) {
		int want = 0;
		for (int i = 0; i < R; i++) want += ids[i] == e;
		float step = want * E < R ? 0.25f : want * E > R ? -0.25f : 0;
		wrong += loads[e] != want || left[e] != 0 || changed[e] != bias[e] + step;
	}
	printf("loads: %d of %d experts are wrong\n", wrong, E);

	s = sm_loads(layer, 0, T, 0, counted);
	printf("no ids: status %d: %s\n", (int)s, s == SM_OK ? "" : sm_error_text());
	s = sm_update_selection_bias(layer, 0, counted, f.selection_bias, NAN);
	printf("rate: status %d: %s\n", (int)s, s == SM_OK ? "" : sm_error_text());
	must("sm_close", sm_close(layer));
	must("sm_close", sm_close(device));
	return off < 1e-3 && wrong == 0 ? 0 : 1;
}
