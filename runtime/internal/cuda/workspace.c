// Products of matrices need scratch memory, a workspace. ONNX Runtime leaves that to cuBLAS, which
// takes it from the driver for each product that a graph notes. The graph then allocates and frees
// memory whenever it runs; that takes time, and it fails when others have filled the card.
//
// So this program has functions by the names of cuBLAS's that ONNX Runtime calls. The loader prefers
// them. They give each handle a workspace for as long as the handle lives.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"

// cuBLAS's own functions. They return a cublasStatus_t; a handle is a pointer.
static struct {
	int (*SetStream)(void *, void *);
	int (*SetWorkspace)(void *, void *, size_t);
	int (*Destroy)(void *);
} cublas;

enum { NOT_INITIALIZED = 1, ALLOC_FAILED = 3 };

typedef struct workspace {
	void *handle, *memory;
	size_t size;
	struct workspace *next;
} workspace;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; // guards what follows
static workspace *first;

static void find_cublas(void) {
	void *library = NULL;
	for (int version = 20; !library && version >= 11; version--) {
		char name[32];
		snprintf(name, sizeof name, "libcublas.so.%d", version);
		library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD); // who calls has loaded it
	}
	if (!library) return;
	*(void **)&cublas.SetStream = dlsym(library, "cublasSetStream_v2");
	*(void **)&cublas.SetWorkspace = dlsym(library, "cublasSetWorkspace_v2");
	*(void **)&cublas.Destroy = dlsym(library, "cublasDestroy_v2");
}

static int has_cublas(void) {
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, find_cublas);
	return cublas.SetStream && cublas.SetWorkspace && cublas.Destroy;
}

// of returns the workspace of a handle, which it allocates if there is none; NULL if it cannot.
static workspace *of(void *handle) {
	for (workspace *w = first; w; w = w->next)
		if (w->handle == handle) return w;
	const char *missing;
	if (cuda_open(&missing) || missing) return NULL;
	workspace *w = malloc(sizeof *w);
	if (!w) return NULL;
	*w = (workspace){handle, NULL, cuda_workspace_size(), first};
	if (cuda_device_allocate(w->size, &w->memory)) {
		free(w);
		return NULL;
	}
	return first = w;
}

int cublasSetStream_v2(void *handle, void *stream) {
	if (!has_cublas()) return NOT_INITIALIZED;
	int code = cublas.SetStream(handle, stream); // the handle then has no workspace of ours
	if (code) return code;
	pthread_mutex_lock(&mutex);
	workspace *w = of(handle);
	pthread_mutex_unlock(&mutex);
	return w ? cublas.SetWorkspace(handle, w->memory, w->size) : ALLOC_FAILED;
}

int cublasDestroy_v2(void *handle) {
	if (!has_cublas()) return NOT_INITIALIZED;
	// Before the handle is destroyed: another thread's new one may then have its address.
	pthread_mutex_lock(&mutex);
	workspace **at = &first;
	while (*at && (*at)->handle != handle) at = &(*at)->next;
	workspace *w = *at;
	if (w) *at = w->next;
	pthread_mutex_unlock(&mutex);
	int code = cublas.Destroy(handle);
	if (w) cuda_device_free(w->memory);
	free(w);
	return code;
}
