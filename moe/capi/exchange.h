#include "sonicmoe.h"

/* These functions call a program's functions, which Go cannot call itself. */
uint64_t sm_call_allocate(sm_allocate allocate, void *context, int64_t bytes);
int32_t sm_call_exchange(
	sm_exchange exchange, void *context, const void *send, const int64_t *send_bytes, void *receive, const int64_t *receive_bytes, const volatile int32_t *stop);
