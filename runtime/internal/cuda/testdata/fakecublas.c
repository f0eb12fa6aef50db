// A libcublas.so.13 for TestFake. A handle has a stream and a workspace, which a new stream takes away.
#include <stddef.h>

typedef struct handle {
	void *stream, *workspace;
	size_t size;
} handle;

int cublasSetStream_v2(void *h, void *stream) {
	*(handle *)h = (handle){stream, NULL, 0};
	return 0;
}

int cublasSetWorkspace_v2(void *h, void *workspace, size_t size) {
	((handle *)h)->workspace = workspace;
	((handle *)h)->size = size;
	return 0;
}

void (*destroyed)(void *); // called with a handle that has ended, whose memory may be used again

int cublasDestroy_v2(void *h) {
	*(handle *)h = (handle){NULL, NULL, 0};
	if (destroyed) destroyed(h);
	return 0;
}
