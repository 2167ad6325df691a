#include "exchange.h"

int32_t sm_call_exchange(
	sm_exchange exchange, void *context, const void *send, const int64_t *send_bytes, void *receive, const int64_t *receive_bytes, const volatile int32_t *stop) {
	return exchange(context, send, send_bytes, receive, receive_bytes, stop);
}

uint64_t sm_call_allocate(sm_allocate allocate, void *context, int64_t bytes) { return allocate(context, bytes); }
