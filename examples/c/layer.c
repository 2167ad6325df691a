/*
 * Runs a Mixture-of-Experts layer from C11, forward and backward, and compares the
 * experts' outputs with a plain loop in double.
 *
 *     go build -buildmode=c-shared -o libsonicmoe.so ./moe/capi
 *     cc -std=c11 -I moe/capi examples/c/layer.c ./libsonicmoe.so -lm -o layer
 *     ./layer emulated      or  ./layer cuda:0
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sonicmoe.h"

enum { T = 24, D = 128, N = 64, E = 4, K = 2, R = T * K };

static sm_handle device;

/* must ends the program with the library's error if there is one. */
static void must(const char *what, sm_status s) {
	if (s == SM_OK) return;
	fprintf(stderr, "%s: status %d: %s\n", what, (int)s, sm_error_text());
	exit(1);
}

/* bf16 rounds to the nearest bf16 number, ties to even. wide converts back. */
static uint16_t bf16(double v) {
	float f = (float)v;
	uint32_t u;
	memcpy(&u, &f, sizeof u);
	return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static double wide(uint16_t b) {
	uint32_t u = (uint32_t)b << 16;
	float f;
	memcpy(&f, &u, sizeof f);
	return f;
}

/* normal returns a number whose distribution is nearly normal. */
static double normal(void) {
	static uint64_t state = 1;
	double sum = 0;
	for (int i = 0; i < 12; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		sum += (double)(state >> 33) / 2147483648.0;
	}
	return sum - 6;
}

static uint64_t alloc(int64_t bytes) {
	uint64_t p = 0;
	must("sm_alloc", sm_alloc(device, bytes, &p));
	return p;
}

/* random_numbers fills host memory with count random numbers of a standard deviation. It
 * returns the address of a copy on the device. */
static uint64_t random_numbers(uint16_t *host, int count, double deviation) {
	for (int i = 0; i < count; i++) host[i] = bf16(normal() * deviation);
	uint64_t p = alloc(2 * (int64_t)count);
	must("sm_write", sm_write(device, 0, p, host, 2 * (int64_t)count));
	return p;
}

static uint16_t x[T * D], router[E * D], w1[E * 2 * N * D], w2[E * D * N], o[T * D], dx[T * D];
static float scores[T * K];
static int32_t ids[T * K];

/* expert adds the output of one expert for one token, times the score, to y. */
static void expert(int e, double score, const uint16_t *token, double *y) {
	double a[N];
	for (int j = 0; j < N; j++) {
		double gate = 0, up = 0;
		for (int c = 0; c < D; c++) {
			gate += wide(token[c]) * wide(w1[(e * 2 * N + j) * D + c]);
			up += wide(token[c]) * wide(w1[(e * 2 * N + N + j) * D + c]);
		}
		a[j] = gate / (1 + exp(-gate)) * up;
	}
	for (int c = 0; c < D; c++) {
		double sum = 0;
		for (int j = 0; j < N; j++) sum += a[j] * wide(w2[(e * D + c) * N + j]);
		y[c] += score * sum;
	}
}

/* difference returns the relative distance of o from the result of the plain loop. */
static double difference(void) {
	double off = 0, all = 0;
	for (int t = 0; t < T; t++) {
		double y[D] = {0};
		for (int k = 0; k < K; k++) expert(ids[t * K + k], scores[t * K + k], x + t * D, y);
		for (int c = 0; c < D; c++) {
			double d = wide(o[t * D + c]) - y[c];
			off += d * d;
			all += y[c] * y[c];
		}
	}
	return sqrt(off / all);
}

int main(int argc, char **argv) {
	must("sm_open", sm_open(argc > 1 ? argv[1] : "emulated", &device));
	sm_config config = {.size = sizeof config, .hidden = D, .intermediate = N, .num_experts = E, .top_k = K};
	sm_handle layer;
	must("sm_layer_new", sm_layer_new(device, &config, &layer));
	sm_sizes_of sizes = {.size = sizeof sizes};
	must("sm_sizes", sm_sizes(layer, T, 0, &sizes));

	sm_forward_pass f = {
		.size = sizeof f, .tokens = T,
		.workspace = alloc(sizes.backward_workspace), .workspace_bytes = sizes.backward_workspace,
		.x = random_numbers(x, T * D, 1), .router = random_numbers(router, E * D, 0.1),
		.w1 = random_numbers(w1, E * 2 * N * D, 0.1), .w2 = random_numbers(w2, E * D * N, 0.1),
		.scores = alloc(sizes.scores), .expert_ids = alloc(sizes.expert_ids),
		.o = alloc(sizes.o), .h = alloc(sizes.h),
	};
	must("sm_forward", sm_forward(layer, &f));
	must("sm_read", sm_read(device, 0, o, f.o, sizeof o));
	must("sm_read", sm_read(device, 0, scores, f.scores, sizeof scores));
	must("sm_read", sm_read(device, 0, ids, f.expert_ids, sizeof ids));
	double off = difference();
	printf("forward: %d tokens, o is within %.4f of a loop in double\n", T, off);

	/* The loss is half of the sum of the squares of o, whose gradient is o. */
	sm_backward_pass b = {
		.size = sizeof b, .tokens = T, .workspace = f.workspace, .workspace_bytes = f.workspace_bytes,
		.x = f.x, .router = f.router, .w1 = f.w1, .w2 = f.w2,
		.scores = f.scores, .expert_ids = f.expert_ids, .h = f.h, .d_o = f.o,
		.dx = alloc(sizeof dx), .d_w2 = {.address = alloc(4 * E * D * N), .type = SM_F32},
	};
	must("sm_backward", sm_backward(layer, &b));
	must("sm_read", sm_read(device, 0, dx, b.dx, sizeof dx));
	/* o is linear in w2. The sum of w2 times its gradient is therefore the sum of the squares of o. */
	static float dw2[E * D * N];
	must("sm_read", sm_read(device, 0, dw2, b.d_w2.address, sizeof dw2));
	double euler = 0, squares = 0;
	for (int i = 0; i < E * D * N; i++) euler += dw2[i] * wide(w2[i]);
	for (int i = 0; i < T * D; i++) squares += wide(o[i]) * wide(o[i]);
	printf("backward: sum of w2 times its gradient over the sum of squares of o is %.4f\n", euler / squares);

	must("sm_close", sm_close(layer));
	must("sm_close", sm_close(device));
	return off < 6e-3 && fabs(euler / squares - 1) < 6e-3 ? 0 : 1;
}
