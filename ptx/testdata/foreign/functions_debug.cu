// --device-debug: variables live in memory, every function is called.
#include "functions.cu"
