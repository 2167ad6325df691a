#include "sonicmoe.h"

/* Calls a program's function, which Go cannot call itself. */
int32_t sm_call_exchange(
	sm_exchange exchange, void *context, const void *send, const int64_t *send_bytes, void *receive, const int64_t *receive_bytes, const volatile int32_t *stop);
