#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>

// The functions of libcuda.so.1 that are needed, with the types of cuda.h; handles are pointers there
// too.
typedef uint64_t device_pointer;

static struct {
	int (*DevicePrimaryCtxRetain)(void **, int);
	int (*DeviceGetAttribute)(int *, int, int);
	int (*CtxPushCurrent)(void *);
	int (*CtxPopCurrent)(void **);
	int (*MemHostAlloc)(void **, size_t, unsigned);
	int (*MemFreeHost)(void *);
	int (*MemAlloc)(device_pointer *, size_t);
	int (*MemFree)(device_pointer);
	int (*MemcpyHtoDAsync)(device_pointer, const void *, size_t, void *);
	int (*MemcpyDtoHAsync)(void *, device_pointer, size_t, void *);
	int (*StreamCreate)(void **, unsigned);
	int (*StreamDestroy)(void *);
	int (*StreamSynchronize)(void *);
	int (*StreamBeginCapture)(void *, int);
	int (*StreamEndCapture)(void *, void **);
	int (*GraphInstantiate)(void **, void *, unsigned long long);
	int (*GraphDestroy)(void *);
	int (*GraphExecDestroy)(void *);
	int (*GraphLaunch)(void *, void *);
	int (*GetErrorString)(int, const char **);
} cu;

static void *context;

enum { PORTABLE = 1, NON_BLOCKING = 1, RELAXED = 2 };

static int open_card(const char **missing) {
	static const struct {
		const char *name;
		void *to;
	} functions[] = {
		{"cuDevicePrimaryCtxRetain", &cu.DevicePrimaryCtxRetain},
		{"cuDeviceGetAttribute", &cu.DeviceGetAttribute},
		{"cuCtxPushCurrent_v2", &cu.CtxPushCurrent},
		{"cuCtxPopCurrent_v2", &cu.CtxPopCurrent},
		{"cuMemHostAlloc", &cu.MemHostAlloc},
		{"cuMemFreeHost", &cu.MemFreeHost},
		{"cuMemAlloc_v2", &cu.MemAlloc},
		{"cuMemFree_v2", &cu.MemFree},
		{"cuMemcpyHtoDAsync_v2", &cu.MemcpyHtoDAsync},
		{"cuMemcpyDtoHAsync_v2", &cu.MemcpyDtoHAsync},
		{"cuStreamCreate", &cu.StreamCreate},
		{"cuStreamDestroy_v2", &cu.StreamDestroy},
		{"cuStreamSynchronize", &cu.StreamSynchronize},
		{"cuStreamBeginCapture_v2", &cu.StreamBeginCapture},
		{"cuStreamEndCapture", &cu.StreamEndCapture},
		{"cuGraphInstantiateWithFlags", &cu.GraphInstantiate},
		{"cuGraphDestroy", &cu.GraphDestroy},
		{"cuGraphExecDestroy", &cu.GraphExecDestroy},
		{"cuGraphLaunch", &cu.GraphLaunch},
		{"cuGetErrorString", &cu.GetErrorString},
	};
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		*missing = "libcuda.so.1";
		return 0;
	}
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		void *f = dlsym(library, functions[i].name);
		if (!f) {
			*missing = functions[i].name;
			return 0;
		}
		*(void **)functions[i].to = f;
	}
	return cu.DevicePrimaryCtxRetain(&context, 0);
}

int cuda_open(const char **missing) {
	static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
	*missing = NULL;
	pthread_mutex_lock(&opening);
	int code = context ? 0 : open_card(missing);
	pthread_mutex_unlock(&opening);
	return code;
}

// WITH_CONTEXT returns the CUresult of a call while the thread has the context.
#define WITH_CONTEXT(call)                                  \
	do {                                                    \
		int code = cu.CtxPushCurrent(context);              \
		if (code) return code;                              \
		code = (call);                                      \
		cu.CtxPopCurrent(&(void *){NULL});                  \
		return code;                                        \
	} while (0)

static int device_allocate(size_t size, void **device) {
	device_pointer p = 0;
	int code = cu.MemAlloc(&p, size);
	*device = (void *)(uintptr_t)p;
	return code;
}

int cuda_device_allocate(size_t size, void **device) { WITH_CONTEXT(device_allocate(size, device)); }

int cuda_device_free(void *device) { WITH_CONTEXT(cu.MemFree((device_pointer)(uintptr_t)device)); }

static int allocate(size_t size, void **host, void **device) {
	int code = cu.MemHostAlloc(host, size, PORTABLE);
	if (code) return code;
	if ((code = device_allocate(size, device))) cu.MemFreeHost(*host);
	return code;
}

int cuda_allocate(size_t size, void **host, void **device) {
	WITH_CONTEXT(allocate(size, host, device));
}

static int release(void *host, void *device) {
	int code = cu.MemFreeHost(host), other = cu.MemFree((device_pointer)(uintptr_t)device);
	return code ? code : other;
}

int cuda_free(void *host, void *device) { WITH_CONTEXT(release(host, device)); }

int cuda_stream(void **stream) { WITH_CONTEXT(cu.StreamCreate(stream, NON_BLOCKING)); }
int cuda_stream_free(void *stream) { WITH_CONTEXT(cu.StreamDestroy(stream)); }
int cuda_wait(void *stream) { WITH_CONTEXT(cu.StreamSynchronize(stream)); }

int cuda_to_device(void *device, const void *host, size_t size, void *stream) {
	WITH_CONTEXT(cu.MemcpyHtoDAsync((device_pointer)(uintptr_t)device, host, size, stream));
}

int cuda_to_host(void *host, const void *device, size_t size, void *stream) {
	WITH_CONTEXT(cu.MemcpyDtoHAsync(host, (device_pointer)(uintptr_t)device, size, stream));
}

// Calls that other threads make meanwhile, such as allocations, do not spoil a relaxed capture.
int cuda_capture(void *stream) { WITH_CONTEXT(cu.StreamBeginCapture(stream, RELAXED)); }

static int captured(void *stream, void **graph) {
	void *noted = NULL;
	int code = cu.StreamEndCapture(stream, &noted);
	if (code) return code;
	code = cu.GraphInstantiate(graph, noted, 0);
	cu.GraphDestroy(noted);
	return code;
}

int cuda_captured(void *stream, void **graph) { WITH_CONTEXT(captured(stream, graph)); }
int cuda_graph_free(void *graph) { WITH_CONTEXT(cu.GraphExecDestroy(graph)); }

static int launch(void *graph, void *stream) {
	int code = cu.GraphLaunch(graph, stream);
	return code ? code : cu.StreamSynchronize(stream);
}

int cuda_launch(void *graph, void *stream) { WITH_CONTEXT(launch(graph, stream)); }

size_t cuda_workspace_size(void) {
	enum { COMPUTE_CAPABILITY_MAJOR = 75, HOPPER = 9 };
	int major = 0;
	cu.DeviceGetAttribute(&major, COMPUTE_CAPABILITY_MAJOR, 0);
	return (size_t)(major >= HOPPER ? 32 : 4) << 20;
}

const char *cuda_text(int code) {
	const char *text = NULL;
	if (!cu.GetErrorString || cu.GetErrorString(code, &text) || !text) return "no text";
	return text;
}
