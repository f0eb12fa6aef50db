//go:build linux && cgo

package runtime

// #include <stdlib.h>
// #ifdef __GLIBC__
// #include <malloc.h>
// static void give_back(void) { malloc_trim(0); }
// #else
// static void give_back(void) {}
// #endif
import "C"

// releaseFreedMemory returns memory that ONNX Runtime has freed to the system. glibc's malloc keeps
// freed memory in its arenas if blocks of other sessions lie between the freed ones.
func releaseFreedMemory() { C.give_back() }
