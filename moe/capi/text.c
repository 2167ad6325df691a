#include <pthread.h>
#include <stdlib.h>

#include "text.h"

/*
 * A thread's text is memory of its own that goes with it, not _Thread_local: Go
 * makes all such variables of the library lie in the few hundred bytes that a
 * process keeps for libraries loaded late, PyTorch among them.
 */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;

static void make_key(void) { (void)pthread_key_create(&key, free); }

char *sm_text(void) {
	static char none[SM_TEXT_BYTES];
	(void)pthread_once(&once, make_key);
	char *text = pthread_getspecific(key);
	if (text == NULL && (text = calloc(1, SM_TEXT_BYTES)) != NULL) (void)pthread_setspecific(key, text);
	return text != NULL ? text : none;
}
