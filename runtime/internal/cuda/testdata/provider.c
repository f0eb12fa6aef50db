// Calls cuBLAS when it is loaded, as ONNX Runtime's CUDA provider does later, and prints what comes of it.
// The card has 10 MiB, so two handles have a workspace of 4 MiB at a time.
#include <dlfcn.h>
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

static void (**destroyed)(void *); // the fake cuBLAS's

// another does what another thread does whose new handle is where the old one was.
static void another(void *h) {
	check(cublasSetStream_v2(h, NULL) == 0, "a handle where one has been");
	*destroyed = NULL;
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
	destroyed = dlsym(dlopen("libcublas.so.13", RTLD_LAZY | RTLD_NOLOAD), "destroyed");
	*destroyed = another;
	check(cublasSetStream_v2(&a, NULL) == 0 && cublasDestroy_v2(&a) == 0, "a handle comes and goes");
	check(a.workspace && cublasSetStream_v2(&b, NULL) == 0, "a new one is there, and a second");
	check(cublasSetStream_v2(&c, NULL) == 3, "the card is full: the new one keeps its memory");
	check(cublasDestroy_v2(&a) == 0 && cublasDestroy_v2(&b) == 0, "these end too");
	fputs("cuBLAS has been called\n", stderr);
}
