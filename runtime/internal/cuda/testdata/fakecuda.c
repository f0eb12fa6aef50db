// A libcuda.so.1 without a card, for TestFake: the card's memory is the machine's, as much as FAKE_CUDA
// says in bytes. Streams do their work at once, or note copies while they capture.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct copy {
	void *to;
	const void *from;
	size_t size;
} copy;

typedef struct stream {
	int capturing, count;
	copy copies[8];
} stream;

enum { OUT_OF_MEMORY = 2, INVALID = 1 };

static int pushed; // contexts
static size_t used;

static size_t *sized(size_t size) {
	size_t *p = malloc(sizeof *p + size);
	if (p) *p = size;
	return p;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
	if (!atoll(getenv("FAKE_CUDA"))) return OUT_OF_MEMORY; // a context takes some
	*context = &pushed;
	return device ? INVALID : 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
	*value = attribute == 75 ? 7 : 0; // compute capability 7.5
	return device ? INVALID : 0;
}

int cuCtxPushCurrent_v2(void *context) {
	pushed++;
	return context == &pushed ? 0 : INVALID;
}

int cuCtxPopCurrent_v2(void **context) {
	*context = &pushed;
	return pushed-- > 0 ? 0 : INVALID;
}

int cuMemHostAlloc(void **p, size_t size, unsigned flags) {
	*p = malloc(size);
	if (*p) memset(*p, 0xff, size);
	return flags == 1 && pushed ? 0 : INVALID;
}

int cuMemFreeHost(void *p) {
	free(p);
	return 0;
}

int cuMemAlloc_v2(uint64_t *p, size_t size) {
	if (used + size > (size_t)atoll(getenv("FAKE_CUDA"))) return OUT_OF_MEMORY;
	used += size;
	*p = (uint64_t)(uintptr_t)(sized(size) + 1);
	return pushed ? 0 : INVALID;
}

int cuMemFree_v2(uint64_t p) {
	size_t *memory = (size_t *)(uintptr_t)p - 1;
	used -= *memory;
	free(memory);
	return 0;
}

static int do_copy(stream *s, void *to, const void *from, size_t size) {
	if (s->capturing)
		s->copies[s->count++] = (copy){to, from, size};
	else
		memcpy(to, from, size);
	return pushed ? 0 : INVALID;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *s) {
	return do_copy(s, (void *)(uintptr_t)to, from, size);
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *s) {
	return do_copy(s, to, (void *)(uintptr_t)from, size);
}

int cuStreamCreate(void **s, unsigned flags) {
	*s = calloc(1, sizeof(stream));
	return flags == 1 ? 0 : INVALID;
}

int cuStreamDestroy_v2(void *s) {
	free(s);
	return 0;
}

int cuStreamSynchronize(void *s) { return ((stream *)s)->capturing ? 900 : 0; }

int cuStreamBeginCapture_v2(void *s, int mode) {
	((stream *)s)->capturing = 1;
	((stream *)s)->count = 0;
	return mode == 2 ? 0 : INVALID;
}

int cuStreamEndCapture(void *s, void **graph) {
	stream *noted = malloc(sizeof *noted);
	*noted = *(stream *)s;
	((stream *)s)->capturing = 0;
	*graph = noted;
	return 0;
}

int cuGraphInstantiateWithFlags(void **graph, void *noted, unsigned long long flags) {
	stream *mine = malloc(sizeof *mine);
	*mine = *(stream *)noted;
	*graph = mine;
	return flags ? INVALID : 0;
}

int cuGraphDestroy(void *graph) {
	free(graph);
	return 0;
}

int cuGraphExecDestroy(void *graph) { return cuGraphDestroy(graph); }

int cuGraphLaunch(void *graph, void *s) {
	stream *noted = graph;
	for (int i = 0; i < noted->count; i++)
		memcpy(noted->copies[i].to, noted->copies[i].from, noted->copies[i].size);
	return s ? 0 : INVALID;
}

int cuGetErrorString(int code, const char **text) {
	*text = code == OUT_OF_MEMORY ? "out of memory" : "invalid";
	return 0;
}
