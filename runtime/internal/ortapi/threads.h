#ifndef MUSTER_THREADS_H
#define MUSTER_THREADS_H

// threads_open finds ONNX Runtime in the library at path, which this process has loaded, and starts
// the thread that starts others. It returns NULL or an error. Call it once.
const char *threads_open(const char *path);

// threads_set has an OrtSessionOptions start its threads by that thread. It returns NULL or an error,
// which the caller frees.
char *threads_set(void *options);

#endif
