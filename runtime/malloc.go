package runtime

// #include <stdlib.h>
// #ifdef __GLIBC__
// #include <malloc.h>
// static void give_back(void) { malloc_trim(0); }
// #else
// static void give_back(void) {}
// #endif
import "C"

// giveBack returns to the system what ONNX Runtime has freed: glibc's malloc keeps it, in an arena
// for each few threads, where what other sessions have there stands between.
func giveBack() { C.give_back() }
