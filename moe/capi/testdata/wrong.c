/* Wrong uses of the interface. Each prints one line: its name, status and text. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sonicmoe.h"

static void said(const char *name, sm_status s) {
	printf("%s\t%d\t%s\n", name, (int)s, s == SM_OK ? "" : sm_error_text());
}

static void *elsewhere(void *text) {
	strncpy(text, sm_error_text(), 8);
	return NULL;
}

static void open_again(sm_handle *device, sm_handle *layer) {
	sm_config c = {.size = sizeof c, .hidden = 128, .intermediate = 64, .num_experts = 4, .top_k = 2, .without_backward = 1};
	said("open again", sm_open("emulated", device));
	said("layer again", sm_layer_new(*device, &c, layer));
}

int main(void) {
	sm_handle device = 0, layer = 0, other = 0;
	said("open NULL", sm_open(NULL, &device));
	said("open nowhere", sm_open("emulated", NULL));
	said("open unknown", sm_open("abacus", &device));
	sm_config c = {.size = sizeof c, .hidden = 128, .intermediate = 64, .num_experts = 4, .top_k = 2};
	said("layer without device", sm_layer_new(0, &c, &layer));
	said("layer of a wild device", sm_layer_new(12345, &c, &layer));
	said("open", sm_open("emulated", &device));
	said("config NULL", sm_layer_new(device, NULL, &layer));
	said("layer nowhere", sm_layer_new(device, &c, NULL));
	sm_config wrong = c;
	wrong.size = 0;
	said("config size", sm_layer_new(device, &wrong, &layer));
	wrong = c, wrong.size = 1 << 20;
	said("config beyond any version", sm_layer_new(device, &wrong, &layer));
	wrong = c, wrong.size = 100;
	said("config cut within a field", sm_layer_new(device, &wrong, &layer));
	wrong = c, wrong.hidden = 100;
	said("hidden", sm_layer_new(device, &wrong, &layer));
	wrong = c, wrong.activation = 256;
	said("activation", sm_layer_new(device, &wrong, &layer));
	said("model NULL", sm_config_of_model(NULL, &wrong));
	said("model unknown", sm_config_of_model("{\"model_type\": \"abacus\"}", &wrong));
	said("store nowhere", sm_store_layer("testdata", 0, NULL));
	said("store no model", sm_store_layer("testdata", 0, "/dev/null"));
	said("stored NULL", sm_config_of_stored(NULL, &wrong));
	said("stored no layer", sm_config_of_stored("sonicmoe.h", &wrong));
	const char *phi = "{\"model_type\": \"phimoe\", \"hidden_size\": 128, \"intermediate_size\": 64, \"num_local_experts\": 4, \"num_experts_per_tok\": 2, \"num_hidden_layers\": 1}";
	said("model with more", sm_config_of_model(phi, &wrong));
	const char *mixtral = "{\"model_type\": \"mixtral\", \"hidden_size\": 128, \"intermediate_size\": 64, \"num_local_experts\": 4, \"num_experts_per_tok\": 2, \"num_hidden_layers\": 1}";
	memset(&wrong, 0xff, sizeof wrong), wrong.size = sizeof wrong;
	said("model", sm_config_of_model(mixtral, &wrong));
	printf("model, fields\t%d\t\n", memcmp(&c, &wrong, sizeof c) == 0 ? 0 : 1);
	struct {
		sm_config c;
		uint64_t later;
	} newer = {c, 0};
	newer.c.size = sizeof newer - 4;
	said("newer program, half a word", sm_layer_new(device, &newer.c, &other));
	newer.c.size = sizeof newer;
	newer.c.without_backward = 1;
	said("newer program", sm_layer_new(device, &newer.c, &layer));
	newer.later = 1;
	said("newer field", sm_layer_new(device, &newer.c, &other));

	sm_sizes_of sizes = {.size = sizeof sizes};
	said("sizes of a device", sm_sizes(device, 1, 0, &sizes));
	said("sizes of -1", sm_sizes(layer, -1, 0, &sizes));
	said("sizes NULL", sm_sizes(layer, 1, 0, NULL));
	struct {
		uint64_t size;
		int64_t workspace, after;
	} older = {16, 0, 77};
	said("older program", sm_sizes(layer, 1, 0, (sm_sizes_of *)&older));
	printf("older program, rest\t%d\t\n", older.workspace > 0 && older.after == 77 ? 0 : 1);

	said("list of none", sm_sizes(layer, 1, 4, &sizes));
	said("pass NULL", sm_forward(layer, NULL));
	sm_forward_pass f = {.size = sizeof f, .tokens = 4};
	said("pass of nothing", sm_forward(layer, &f));
	f.size = 100;
	said("pass cut within a field", sm_forward(layer, &f));
	f.size = sizeof f;
	f.x = 24;
	said("x off", sm_forward(layer, &f));
	f.tokens = INT64_MAX;
	said("tokens", sm_forward(layer, &f));
	f = (sm_forward_pass){
		.size = sizeof f, .tokens = 4, .workspace = 1 << 20, .workspace_bytes = 1 << 20,
		.x = 1 << 21, .router = 1 << 22, .w1 = 1 << 23, .w2 = 1 << 24,
		.scores = 1 << 25, .expert_ids = 1 << 26, .o = 1 << 27, .b1 = 1 << 28,
	};
	said("bias of none", sm_forward(layer, &f));
	wrong = c, wrong.bias = wrong.without_backward = 1;
	sm_handle biased = 0;
	said("biased", sm_layer_new(device, &wrong, &biased));
	f.b1 = 0;
	said("no bias", sm_forward(biased, &f));
	said("close biased", sm_close(biased));
	sm_backward_pass b = {.size = sizeof b, .tokens = 4};
	said("no backward", sm_backward(layer, &b));
	b.size = offsetof(sm_backward_pass, d_w1) + 8;
	said("pass cut within a gradient", sm_backward(layer, &b));
	b.size = offsetof(sm_backward_pass, d_w1);
	said("older pass", sm_backward(layer, &b));
	b.size = sizeof b;
	b.d_w1.type = -1;
	said("gradient type", sm_experts_backward(layer, &b));

	uint64_t p = 0;
	said("alloc -1", sm_alloc(device, -1, &p));
	said("alloc", sm_alloc(device, 64, &p));
	said("write NULL", sm_write(device, 0, p, NULL, 64));
	said("write too much", sm_write(device, 0, p, &wrong, sizeof wrong));
	said("read -1", sm_read(device, 0, &wrong, p, -1));
	said("free", sm_free(device, p));
	said("free again", sm_free(device, p));
	said("warm which", sm_warm("B200", &c, ""));
	said("bundle NULL", sm_add_bundle(NULL));
	said("bundle nowhere", sm_add_bundle("nowhere.bundle"));
	said("bundle of C", sm_add_bundle("sonicmoe.h"));
	char report[16];
	const void *host = report;
	said("kernel NULL", sm_check_kernel(NULL, NULL, report, sizeof report));
	said("kernel no JSON", sm_check_kernel("kernel", NULL, report, sizeof report));
	said("kernel no PTX", sm_check_kernel("{\"ptx\": \"abacus\"}", NULL, report, sizeof report));
	said("kernel buffer", sm_check_kernel("{\"buffers\": [-1]}", (void *const *)&host, report, sizeof report));
	said("key NULL", sm_set_bundle_key(NULL));
	said("key of C", sm_set_bundle_key("sonicmoe.h"));

	char text[8] = "?";
	pthread_t thread;
	pthread_create(&thread, NULL, elsewhere, text);
	pthread_join(thread, NULL);
	printf("another thread's text\t%d\t\n", text[0] == 0 ? 0 : 1);

	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		said("child of a fork", sm_forward(layer, &f));
		said("child of a fork, open", sm_open("emulated", &other));
		fflush(stdout);
		_exit(0);
	}
	int ended = -1;
	waitpid(child, &ended, 0);
	printf("child, end\t%d\t\n", ended);

	said("close layer", sm_close(layer));
	said("closed layer", sm_forward(layer, &f));
	said("close again", sm_close(layer));
	open_again(&device, &layer);
	f = (sm_forward_pass){
		.size = sizeof f, .tokens = 4, .workspace = 1 << 20, .workspace_bytes = 1 << 20,
		.x = 1 << 21, .router = 1 << 22, .w1 = 1 << 23, .w2 = 1 << 24,
		.scores = 1 << 25, .expert_ids = 1 << 26, .o = 1 << 27,
	};
	said("close device", sm_close(device));
	said("layer of a closed device", sm_forward(layer, &f));
	said("closed device", sm_alloc(device, 64, &p));
	return 0;
}
