// What ONNX Runtime has and its Go binding lacks: threads of sessions, started by a thread of the
// usual priority that may run on all processors; shared initializers; tensors in a card's memory;
// tensors without dimensions, and outputs of any type.
#define _GNU_SOURCE // for threads' processors
#include "calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// The functions of ONNX Runtime that are needed, by their positions in its interface, which only
// ever grows at its end. TestPositions compares them with the header that comes with the binding.
enum {
	VERSION = 24,
	GetErrorMessage = 2,
	Run = 9,
	CreateRunOptions = 39,
	CreateTensorAsOrtValue = 48,
	CreateTensorWithDataAsOrtValue = 49,
	GetTensorMutableData = 51,
	FillStringTensor = 52,
	GetStringTensorDataLength = 53,
	GetStringTensorContent = 54,
	GetDimensionsCount = 61,
	GetDimensions = 62,
	GetTensorShapeElementCount = 64,
	GetTensorTypeAndShape = 65,
	CreateMemoryInfo = 68,
	GetAllocatorWithDefaultOptions = 78,
	ReleaseStatus = 93,
	ReleaseMemoryInfo = 94,
	ReleaseValue = 96,
	ReleaseRunOptions = 97,
	ReleaseTensorTypeAndShapeInfo = 99,
	AddInitializer = 150,
	AddRunConfigEntry = 165,
	SessionOptionsSetCustomCreateThreadFn = 196,
	SessionOptionsSetCustomThreadCreationOptions = 197,
	SessionOptionsSetCustomJoinThreadFn = 198
};

static void *const *api;

// A group is the threads of some sessions.
struct group {
	pthread_mutex_t mutex;
	struct thread *first;
	int left; // the processor on which they do not run; -1: none
};

// A thread is one that ONNX Runtime asks for, and then its handle.
struct thread {
	void (*work)(void *);
	void *argument;
	pthread_t id;
	int error;
	enum { ASKED, STARTED } state;
	struct thread *next; // in the queue, and then in the group
	struct group *group;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t asked = PTHREAD_COND_INITIALIZER, started = PTHREAD_COND_INITIALIZER;
static struct thread *queue;
static cpu_set_t all; // the process's processors

static void *run(void *argument) {
	struct thread *t = argument;
	t->work(t->argument);
	return NULL;
}

// start_all starts the threads of the queue, for ever.
static void *start_all(void *unused) {
	(void)unused;
	pthread_mutex_lock(&mutex);
	for (;;) {
		while (!queue) pthread_cond_wait(&asked, &mutex);
		struct thread *t = queue;
		queue = t->next;
		t->error = pthread_create(&t->id, NULL, run, t);
		t->state = STARTED;
		pthread_cond_broadcast(&started);
	}
	return NULL;
}

// create is an OrtCustomCreateThreadFn for a group: it returns a handle, or NULL for an error.
static void *create(void *group, void (*work)(void *), void *argument) {
	struct thread *t = calloc(1, sizeof *t);
	if (!t) return NULL;
	t->group = group;
	t->work = work;
	t->argument = argument;
	pthread_mutex_lock(&mutex);
	t->next = queue;
	queue = t;
	pthread_cond_signal(&asked);
	while (t->state == ASKED) pthread_cond_wait(&started, &mutex);
	pthread_mutex_unlock(&mutex);
	if (t->error) {
		free(t);
		return NULL;
	}
	pthread_mutex_lock(&t->group->mutex);
	t->next = t->group->first;
	t->group->first = t;
	pthread_mutex_unlock(&t->group->mutex);
	return t;
}

// join is an OrtCustomJoinThreadFn.
static void join(void *handle) {
	struct thread *t = handle;
	pthread_mutex_lock(&t->group->mutex);
	struct thread **link = &t->group->first;
	while (*link != t) link = &(*link)->next;
	*link = t->next;
	pthread_mutex_unlock(&t->group->mutex);
	pthread_join(t->id, NULL);
	free(t);
}

const char *threads_open(const char *path) {
	void *library = dlopen(path, RTLD_LAZY); // loaded already: this only finds it
	if (!library) return dlerror();
	struct {
		void *const *(*api)(uint32_t version);
	} *(*base)(void) = NULL;
	*(void **)&base = dlsym(library, "OrtGetApiBase");
	if (!base) return dlerror();
	api = base()->api(VERSION);
	if (!api) return "the library lacks the interface's version";
	if (sched_getaffinity(0, sizeof all, &all)) return strerror(errno);
	pthread_t thread;
	int error = pthread_create(&thread, NULL, start_all, NULL);
	if (error) return strerror(error);
	pthread_detach(thread);
	return NULL;
}

// text_of frees a status, which may be NULL, and returns a copy of its text.
static char *text_of(void *status) {
	if (!status) return NULL;
	char *text = strdup(((const char *(*)(const void *))api[GetErrorMessage])(status));
	((void (*)(void *))api[ReleaseStatus])(status);
	return text;
}

void *group_new(void) {
	struct group *g = calloc(1, sizeof *g);
	if (g) {
		pthread_mutex_init(&g->mutex, NULL);
		g->left = -1;
	}
	return g;
}

void group_free(void *group) { free(group); }

char *group_set(void *group, void *options) {
	typedef void *setter(void *options, void *value);
	void *status = ((setter *)api[SessionOptionsSetCustomCreateThreadFn])(options, (void *)create);
	if (!status)
		status = ((setter *)api[SessionOptionsSetCustomJoinThreadFn])(options, (void *)join);
	if (!status)
		status = ((setter *)api[SessionOptionsSetCustomThreadCreationOptions])(options, group);
	return text_of(status);
}

void group_leave(void *group) {
	struct group *g = group;
	int cpu = sched_getcpu();
	pthread_mutex_lock(&g->mutex);
	if (cpu >= 0 && cpu != g->left) {
		g->left = cpu;
		cpu_set_t others = all;
		CPU_CLR(cpu, &others);
		// An error changes nothing: then the kernel places the threads, as well as it does.
		for (struct thread *t = g->first; t; t = t->next)
			pthread_setaffinity_np(t->id, sizeof others, &others);
	}
	pthread_mutex_unlock(&g->mutex);
}

char *initializer_set(void *options, const char *name, const void *value) {
	typedef void *adder(void *options, const char *name, const void *value);
	return text_of(((adder *)api[AddInitializer])(options, name, value));
}

// tensor_in makes an OrtValue of memory on a device, which must outlive it.
static char *tensor_in(const char *device, void *data, size_t size, const int64_t *shape,
	size_t dims, int type, void **value) {
	// OrtDeviceAllocator and OrtMemTypeDefault are 0. The process sees one card, which is 0 too.
	typedef void *memory_creator(const char *name, int type, int id, int kind, void **memory);
	void *memory = NULL;
	void *status = ((memory_creator *)api[CreateMemoryInfo])(device, 0, 0, 0, &memory);
	if (status) return text_of(status);
	typedef void *creator(const void *memory, void *data, size_t size, const int64_t *shape,
		size_t dims, int type, void **value);
	status = ((creator *)api[CreateTensorWithDataAsOrtValue])(memory, data, size, shape, dims, type,
		value);
	((void (*)(void *))api[ReleaseMemoryInfo])(memory);
	return text_of(status);
}

char *tensor_on_card(void *data, size_t size, const int64_t *shape, size_t dims, int type,
	void **value) {
	return tensor_in("Cuda", data, size, shape, dims, type, value);
}

char *scalar_new(void *data, size_t size, int type, void **value) {
	return tensor_in("Cpu", data, size, NULL, 0, type, value);
}

char *string_scalar_new(const char *text, void **value) {
	void *allocator = NULL;
	void *status = ((void *(*)(void **))api[GetAllocatorWithDefaultOptions])(&allocator);
	if (status) return text_of(status);
	typedef void *creator(void *allocator, const int64_t *shape, size_t dims, int type, void **value);
	status = ((creator *)api[CreateTensorAsOrtValue])(allocator, NULL, 0, STRINGS, value);
	if (status) return text_of(status);
	typedef void *filler(void *value, const char *const *texts, size_t count);
	status = ((filler *)api[FillStringTensor])(*value, &text, 1);
	if (status) value_release(*value);
	return text_of(status);
}

void value_release(void *value) { ((void (*)(void *))api[ReleaseValue])(value); }

char *run_on_card(void *session, const char *const *inputs, const void *const *in, size_t count,
	const char *const *outputs, size_t outs, void **out) {
	void *options = NULL;
	void *status = ((void *(*)(void **))api[CreateRunOptions])(&options);
	if (status) return text_of(status);
	typedef void *setter(void *options, const char *key, const char *value);
	setter *set = (setter *)api[AddRunConfigEntry];
	status = set(options, "gpu_graph_id", "-1");
	if (!status) status = set(options, "disable_synchronize_execution_providers", "1");
	typedef void *runner(void *session, const void *options, const char *const *inputs,
		const void *const *in, size_t count, const char *const *outputs, size_t outs, void **out);
	if (!status)
		status = ((runner *)api[Run])(session, options, inputs, in, count, outputs, outs, out);
	((void (*)(void *))api[ReleaseRunOptions])(options);
	return text_of(status);
}

char *session_run(void *session, const void *options, char *const *inputs, void *const *in,
	size_t count, char *const *outputs, size_t outs, void **out) {
	typedef void *runner(void *session, const void *options, char *const *inputs, void *const *in,
		size_t count, char *const *outputs, size_t outs, void **out);
	return text_of(((runner *)api[Run])(session, options, inputs, in, count, outputs, outs, out));
}

char *tensor_shape(void *value, int64_t *shape, size_t *rank, size_t *count) {
	void *info = NULL;
	void *status = ((void *(*)(void *, void **))api[GetTensorTypeAndShape])(value, &info);
	if (status) return text_of(status);
	typedef void *counter(const void *info, size_t *n);
	status = ((counter *)api[GetDimensionsCount])(info, rank);
	char *text = NULL;
	if (!status && *rank > MAX_RANK) text = strdup("it has too many dimensions");
	typedef void *getter(const void *info, int64_t *shape, size_t rank);
	if (!status && !text && *rank) status = ((getter *)api[GetDimensions])(info, shape, *rank);
	if (!status && !text) status = ((counter *)api[GetTensorShapeElementCount])(info, count);
	((void (*)(void *))api[ReleaseTensorTypeAndShapeInfo])(info);
	return text ? text : text_of(status);
}

char *tensor_data(void *value, void **data) {
	return text_of(((void *(*)(void *, void **))api[GetTensorMutableData])(value, data));
}

char *strings_length(void *value, size_t *length) {
	return text_of(((void *(*)(void *, size_t *))api[GetStringTensorDataLength])(value, length));
}

char *strings_copy(void *value, void *text, size_t length, size_t *begins, size_t count) {
	typedef void *getter(void *value, void *text, size_t length, size_t *begins, size_t count);
	return text_of(((getter *)api[GetStringTensorContent])(value, text, length, begins, count));
}
