/* usage: signed KEY BUNDLE...: sets the key, adds each bundle, and creates a layer. Prints
 * one line for each call: its argument, status and text. */
#include <stdio.h>

#include "sonicmoe.h"

static void said(const char *of, sm_status s) {
	printf("%s\t%d\t%s\n", of, (int)s, s == SM_OK ? "" : sm_error_text());
}

int main(int count, char **argument) {
	said("key", sm_set_bundle_key(argument[1]));
	for (int i = 2; i < count; i++)
		said(argument[i], sm_add_bundle(argument[i]));
	sm_handle device = 0, layer = 0;
	sm_config c = {.size = sizeof c, .hidden = 128, .intermediate = 64, .num_experts = 4, .top_k = 2};
	said("open", sm_open("emulated", &device));
	said("layer", sm_layer_new(device, &c, &layer));
	return 0;
}
