/* Stochastic rounding: checks that lists consist of whole tiles, and compares output and
 * gradients with the plain loop of the example. */
#define main example
#include "../../../examples/c/layer.c"
#undef main

enum { TILE = 8, MOST = R + E * (TILE - 1), SEEDS = 6 };

static int32_t list_ids[MOST], list_tokens[MOST];
static float list_scores[MOST], d_scores[MOST];

/* Counts the rows of each expert in of, and returns the number of all rows. Ends the program
 * if the rows of an expert are not whole tiles. */
static int counts(int rows, int of[E]) {
	int all = 0;
	memset(of, 0, E * sizeof of[0]);
	for (int i = 0; i < rows; i++) {
		if (list_ids[i] < 0 || list_ids[i] >= E) continue;
		of[list_ids[i]]++;
		all++;
	}
	for (int e = 0; e < E; e++) {
		if (of[e] % TILE == 0) continue;
		fprintf(stderr, "expert %d has %d tokens, no multiple of %d\n", e, of[e], TILE);
		exit(1);
	}
	return all;
}

static void read_into(void *to, uint64_t from, int64_t bytes) { must("sm_read", sm_read(device, 0, to, from, bytes)); }

int main(void) {
	must("sm_open", sm_open("emulated", &device));
	sm_config config = {
		.size = sizeof config, .hidden = D, .intermediate = N, .num_experts = E, .top_k = K,
		.rounding_rule = SM_ROUND_STOCHASTIC, .rounding_tile = TILE,
	};
	sm_handle layer;
	must("sm_layer_new", sm_layer_new(device, &config, &layer));
	sm_sizes_of sizes = {.size = sizeof sizes};
	must("sm_sizes", sm_sizes(layer, T, 0, &sizes));
	int rows = (int)sizes.rounded_rows;
	if (rows < 1 || rows > MOST) return 2;
	must("sm_sizes", sm_sizes(layer, T, rows, &sizes));

	sm_forward_pass f = {
		.size = sizeof f, .tokens = T,
		.workspace = alloc(sizes.backward_workspace), .workspace_bytes = sizes.backward_workspace,
		.x = random_numbers(x, T * D, 1), .router = random_numbers(router, E * D, 0.1),
		.w1 = random_numbers(w1, E * 2 * N * D, 0.1), .w2 = random_numbers(w2, E * D * N, 0.1),
		.scores = alloc(4 * R), .expert_ids = alloc(4 * R), .logits = alloc(2 * T * E),
		.o = alloc(sizes.o), .h = alloc(sizes.h),
		.entries = rows, .token_indices = alloc(sizes.expert_ids),
	};
	/* If the list had no ids and scores of its own, it would overwrite the routing. This is an error. */
	sm_status s = sm_forward(layer, &f);
	printf("one list for both: status %d: %s\n", (int)s, s == SM_OK ? "" : sm_error_text());

	f.list_expert_ids = alloc(sizes.expert_ids), f.list_scores = alloc(sizes.scores);
	int first[E], of[E], differ = 0;
	for (f.seed = 1; f.seed <= SEEDS; f.seed++) {
		must("sm_forward", sm_forward(layer, &f));
		read_into(list_ids, f.list_expert_ids, 4 * rows);
		counts(rows, f.seed == 1 ? first : of);
		differ += f.seed > 1 && memcmp(first, of, sizeof of) != 0;
	}
	printf("seeds: %d of %d gave another list than the first seed\n", differ, SEEDS - 1);

	read_into(o, f.o, sizeof o);
	read_into(list_tokens, f.token_indices, 4 * rows);
	read_into(list_scores, f.list_scores, 4 * rows);
	double off = 0, squares = 0;
	static double y[T][D];
	for (int i = 0; i < rows; i++)
		if (list_ids[i] >= 0 && list_ids[i] < E)
			expert(list_ids[i], list_scores[i], x + list_tokens[i] * D, y[list_tokens[i]]);
	for (int t = 0; t < T; t++)
		for (int c = 0; c < D; c++) {
			double v = wide(o[t * D + c]);
			off += (v - y[t][c]) * (v - y[t][c]);
			squares += v * v;
		}
	off = sqrt(off / squares);
	printf("forward: %d rows, o is within %.4f of a loop in double\n", counts(rows, of), off);

	/* o is also linear in the scores. */
	sm_backward_pass b = {
		.size = sizeof b, .tokens = T, .workspace = f.workspace, .workspace_bytes = f.workspace_bytes,
		.x = f.x, .router = f.router, .w1 = f.w1, .w2 = f.w2,
		.scores = f.scores, .expert_ids = f.expert_ids, .logits = f.logits, .h = f.h, .d_o = f.o,
		.dx = alloc(sizeof dx), .d_scores = alloc(4 * rows),
		.entries = rows, .token_indices = f.token_indices, .list_expert_ids = f.list_expert_ids, .list_scores = f.list_scores,
	};
	must("sm_backward", sm_backward(layer, &b));
	read_into(d_scores, b.d_scores, 4 * rows);
	double euler = 0;
	for (int i = 0; i < rows; i++)
		if (list_ids[i] >= 0 && list_ids[i] < E) euler += (double)d_scores[i] * list_scores[i];
	printf("backward: sum of scores times their gradients over the sum of squares of o is %.4f\n", euler / squares);

	must("sm_close", sm_close(layer));
	must("sm_close", sm_close(device));
	return differ > 0 && off < 1e-2 && fabs(euler / squares - 1) < 1e-2 ? 0 : 1;
}
