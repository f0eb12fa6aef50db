// Calls cuBLAS when it is loaded, as ONNX Runtime's CUDA provider does later, and prints what comes of it.
// The card has 10 MiB, so two handles have a workspace of 4 MiB at a time.
#include <stddef.h>
#include <stdio.h>

typedef struct handle {
	void *stream, *workspace;
	size_t size;
} handle;

int cublasSetStream_v2(void *h, void *stream);
int cublasDestroy_v2(void *h);

static void check(int ok, const char *what) {
	if (!ok) fprintf(stderr, "--- FAIL: %s\n", what);
}

__attribute__((constructor)) static void calls(void) {
	handle a = {0}, b = {0}, c = {0};
	int stream;
	check(cublasSetStream_v2(&a, &stream) == 0 && a.stream == &stream, "the stream is set");
	check(a.workspace && a.size == 4 << 20, "a handle gets 4 MiB");
	void *had = a.workspace;
	check(cublasSetStream_v2(&a, NULL) == 0 && a.workspace == had, "it keeps them");
	check(cublasSetStream_v2(&b, NULL) == 0 && b.workspace && b.workspace != had, "another has its own");
	check(cublasSetStream_v2(&c, NULL) == 3, "the card is full");
	check(cublasDestroy_v2(&a) == 0 && cublasSetStream_v2(&c, NULL) == 0, "memory came back");
	check(cublasDestroy_v2(&b) == 0 && cublasDestroy_v2(&c) == 0, "the others end");
	fputs("cuBLAS has been called\n", stderr);
}
