#ifndef MUSTER_CALLS_H
#define MUSTER_CALLS_H

// threads_open finds ONNX Runtime in the library at path, which this process has loaded, and starts
// the thread that starts others. It returns NULL or an error. Call it once.
const char *threads_open(const char *path);

// threads_set has an OrtSessionOptions start its threads by that thread. It returns NULL or an error,
// which the caller frees.
char *threads_set(void *options);

// initializer_set has a session with an OrtSessionOptions use an OrtValue as the initializer of that
// name. It returns NULL or an error, which the caller frees.
char *initializer_set(void *options, const char *name, const void *value);

#endif
