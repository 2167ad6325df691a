#include <pthread.h>
#include <stdlib.h>

#include "text.h"

/*
 * Each thread allocates the text of its last error, which is freed when the thread ends.
 * The text is not a _Thread_local variable. In a library with Go, all such variables take
 * space in the few hundred bytes that a process reserves for libraries loaded late, and
 * PyTorch needs these bytes, too.
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
