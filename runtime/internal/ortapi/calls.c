// Threads of sessions, started by a thread of the usual priority that may run on all processors.
#include "calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// The functions of ONNX Runtime that are needed, by their positions in its interface, which only
// ever grows at its end. TestPositions compares them with the header that comes with the binding.
enum {
	VERSION = 24,
	GetErrorMessage = 2,
	ReleaseStatus = 93,
	AddInitializer = 150,
	SessionOptionsSetCustomCreateThreadFn = 196,
	SessionOptionsSetCustomJoinThreadFn = 198
};

static void *const *api;

// A thread is one that ONNX Runtime asks for, and then its handle.
struct thread {
	void (*work)(void *);
	void *argument;
	pthread_t id;
	int error;
	enum { ASKED, STARTED } state;
	struct thread *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t asked = PTHREAD_COND_INITIALIZER, started = PTHREAD_COND_INITIALIZER;
static struct thread *queue;

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

// create is an OrtCustomCreateThreadFn: it returns a handle, or NULL for an error.
static void *create(void *options, void (*work)(void *), void *argument) {
	(void)options;
	struct thread *t = calloc(1, sizeof *t);
	if (!t) return NULL;
	t->work = work;
	t->argument = argument;
	pthread_mutex_lock(&mutex);
	t->next = queue;
	queue = t;
	pthread_cond_signal(&asked);
	while (t->state == ASKED) pthread_cond_wait(&started, &mutex);
	pthread_mutex_unlock(&mutex);
	if (t->error == 0) return t;
	free(t);
	return NULL;
}

// join is an OrtCustomJoinThreadFn.
static void join(void *handle) {
	struct thread *t = handle;
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

char *threads_set(void *options) {
	typedef void *setter(void *options, void *function);
	void *status = ((setter *)api[SessionOptionsSetCustomCreateThreadFn])(options, (void *)create);
	if (!status)
		status = ((setter *)api[SessionOptionsSetCustomJoinThreadFn])(options, (void *)join);
	return text_of(status);
}

char *initializer_set(void *options, const char *name, const void *value) {
	typedef void *adder(void *options, const char *name, const void *value);
	return text_of(((adder *)api[AddInitializer])(options, name, value));
}
