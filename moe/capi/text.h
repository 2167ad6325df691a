/* The text of the calling thread's last error. */
#ifndef SONICMOE_TEXT_H
#define SONICMOE_TEXT_H

#define SM_TEXT_BYTES 4096

__attribute__((visibility("hidden"))) char *sm_text(void);

/* Not 0 in a process that was forked from the process that loaded the library. */
__attribute__((visibility("hidden"))) extern int sm_forked;

#endif
