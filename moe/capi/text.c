#include "text.h"

static _Thread_local char text[SM_TEXT_BYTES];

char *sm_text(void) { return text; }
