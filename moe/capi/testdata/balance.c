/* Load balancing: compares the loss of sequences with its formula in double, and the loads and
 * the selection bias with counts of the ids. On a GPU a graph runs the same step again.
 *
 *     ./balance emulated      or  ./balance cuda:0 */
#define main example
#include "../../../examples/c/layer.c"
#undef main

#include <dlfcn.h>

enum { SEQUENCE = 8, FIRST = 10 };

static const float RATE = 0.25f;

static void read_into(void *to, uint64_t from, int64_t bytes) { must("sm_read", sm_read(device, 0, to, from, bytes)); }

/* Returns the balance loss: the mean over sequences of length tokens. */
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

/* A training step of two micro-batches, with the loss of sequences, the loads and the bias. */
typedef struct {
	sm_handle layer;
	sm_forward_pass f;
	sm_backward_pass b;
	uint64_t loads;
} training;

static void queue(training *s, uint64_t stream) {
	s->f.stream = s->b.stream = stream;
	must("sm_forward", sm_forward(s->layer, &s->f));
	must("sm_backward", sm_backward(s->layer, &s->b));
	must("sm_loads", sm_loads(s->layer, stream, FIRST, s->f.expert_ids, s->loads));
	must("sm_loads", sm_loads(s->layer, stream, T - FIRST, s->f.expert_ids + 4 * FIRST * K, s->loads));
	must("sm_update_selection_bias", sm_update_selection_bias(s->layer, stream, s->loads, s->f.selection_bias, RATE));
}

/* Calls a function of the GPU's driver whose arguments are pointers or integers. */
static void cuda(const char *name, void *a, void *b, void *c) {
	static void *driver;
	if (driver == NULL) driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*function)(void *, void *, void *);
	*(void **)&function = driver == NULL ? NULL : dlsym(driver, name);
	int status = function == NULL ? -1 : function(a, b, c);
	if (status != 0) {
		fprintf(stderr, "%s: %d\n", name, status);
		exit(1);
	}
}

/* Runs a step as a graph. */
static void replay(training *s) {
	void *stream, *graph, *program;
	cuda("cuStreamCreate", &stream, (void *)1, NULL);
	cuda("cuStreamBeginCapture_v2", stream, (void *)2, NULL);
	queue(s, (uint64_t)(uintptr_t)stream);
	cuda("cuStreamEndCapture", stream, &graph, NULL);
	cuda("cuGraphInstantiateWithFlags", &program, graph, NULL);
	cuda("cuGraphLaunch", program, stream, NULL);
	cuda("cuStreamSynchronize", stream, NULL, NULL);
}

/* Returns the number of experts whose bias was not changed exactly as their load demands. */
static int wrong_steps(training *s, const float before[E]) {
	float after[E];
	int32_t left[E];
	read_into(after, s->f.selection_bias, sizeof after);
	read_into(left, s->loads, sizeof left);
	int wrong = 0;
	for (int e = 0; e < E; e++) {
		int load = 0;
		for (int i = 0; i < R; i++) load += ids[i] == e;
		float step = load * E < R ? RATE : load * E > R ? -RATE : 0;
		wrong += left[e] != 0 || after[e] != before[e] + step;
	}
	return wrong;
}

/* Checks a step that has run. before is the bias before the step. Returns whether something is wrong. */
static int check(training *s, const char *how, const float before[E], uint16_t logits[T][E]) {
	float losses[2];
	read_into(ids, s->f.expert_ids, sizeof ids);
	read_into(logits, s->f.logits, T * E * sizeof(uint16_t));
	read_into(losses, s->b.router_losses, sizeof losses);
	double want = balance(s->b.sequence ? (int)s->b.sequence : T, logits);
	int wrong = wrong_steps(s, before);
	printf("%s: balance loss of sequences of %d tokens %.4f, in double %.4f; %d of %d experts wrong\n",
	       how, s->b.sequence ? (int)s->b.sequence : T, losses[0], want, wrong, E);
	return wrong != 0 || fabs(losses[0] / want - 1) > 1e-3;
}

int main(int argc, char **argv) {
	const char *name = argc > 1 ? argv[1] : "emulated";
	must("sm_open", sm_open(name, &device));
	sm_config config = {
		.size = sizeof config, .hidden = D, .intermediate = N, .num_experts = E, .top_k = K, .score = SM_SIGMOID, .selection_bias = 1,
	};
	training s = {0};
	must("sm_layer_new", sm_layer_new(device, &config, &s.layer));
	sm_sizes_of sizes = {.size = sizeof sizes};
	must("sm_sizes", sm_sizes(s.layer, T, 0, &sizes));
	float bias[E] = {0.3f, 0.2f, -0.1f, 0};
	static uint16_t logits[T][E];
	static int32_t none[E];
	s.f = (sm_forward_pass){
		.size = sizeof s.f, .tokens = T,
		.workspace = alloc(sizes.backward_workspace), .workspace_bytes = sizes.backward_workspace,
		.x = random_numbers(x, T * D, 1), .router = random_numbers(router, E * D, 0.1),
		.w1 = random_numbers(w1, E * 2 * N * D, 0.1), .w2 = random_numbers(w2, E * D * N, 0.1),
		.scores = alloc(sizes.scores), .expert_ids = alloc(sizes.expert_ids), .logits = alloc(sizeof logits),
		.o = alloc(sizes.o), .h = alloc(sizes.h), .selection_bias = alloc(sizeof bias),
	};
	s.b = (sm_backward_pass){
		.size = sizeof s.b, .tokens = T, .workspace = s.f.workspace, .workspace_bytes = s.f.workspace_bytes,
		.x = s.f.x, .router = s.f.router, .w1 = s.f.w1, .w2 = s.f.w2,
		.scores = s.f.scores, .expert_ids = s.f.expert_ids, .logits = s.f.logits, .h = s.f.h, .d_o = s.f.o,
		.dx = alloc(sizeof dx), .router_losses = alloc(2 * sizeof(float)), .balance = 0.5,
	};
	s.loads = alloc(sizeof none);
	must("sm_write", sm_write(device, 0, s.loads, none, sizeof none));
	int failed = 0;
	for (int i = 0; i < 3; i++) {
		s.b.sequence = i == 0 ? 0 : SEQUENCE;
		must("sm_write", sm_write(device, 0, s.f.selection_bias, bias, sizeof bias));
		int graph = i == 2 && strcmp(name, "emulated") != 0;
		if (graph) replay(&s);
		else queue(&s, 0);
		failed |= check(&s, graph ? "graph" : "step", bias, logits);
	}

	s.b.sequence = 5;
	sm_status status = sm_backward(s.layer, &s.b);
	printf("sequence: status %d: %s\n", (int)status, status == SM_OK ? "" : sm_error_text());
	status = sm_loads(s.layer, 0, T, 0, s.loads);
	printf("no ids: status %d: %s\n", (int)status, status == SM_OK ? "" : sm_error_text());
	status = sm_update_selection_bias(s.layer, 0, s.loads, s.f.selection_bias, NAN);
	printf("rate: status %d: %s\n", (int)status, status == SM_OK ? "" : sm_error_text());
	must("sm_close", sm_close(s.layer));
	must("sm_close", sm_close(device));
	return failed;
}
