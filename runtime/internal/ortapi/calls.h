#ifndef MUSTER_CALLS_H
#define MUSTER_CALLS_H

#include <stddef.h>
#include <stdint.h>

// threads_open finds ONNX Runtime in the library at path, which this process has loaded, and starts
// the thread that starts others. It returns NULL or an error. Call it once.
const char *threads_open(const char *path);

// group_new returns a group of threads, or NULL if there is no memory. group_free frees it after the
// last session with such threads.
void *group_new(void);
void group_free(void *group);

// group_set has an OrtSessionOptions start its threads by that thread, in a group. It returns NULL or
// an error, which the caller frees.
char *group_set(void *group, void *options);

// group_leave has the threads of a group leave the processor that the caller runs on to it.
void group_leave(void *group);

// initializer_set has a session with an OrtSessionOptions use an OrtValue as the initializer of that
// name. It returns NULL or an error, which the caller frees.
char *initializer_set(void *options, const char *name, const void *value);

// tensor_on_card makes an OrtValue of memory of the card, which must outlive it. It returns NULL or an
// error, which the caller frees.
char *tensor_on_card(void *data, size_t size, const int64_t *shape, size_t dims, int type,
	void **value);

// scalar_new makes an OrtValue without dimensions of memory with one element, which must outlive it.
// It returns NULL or an error, which the caller frees.
char *scalar_new(void *data, size_t size, int type, void **value);

// string_scalar_new makes an OrtValue without dimensions that holds a copy of text. It returns NULL or
// an error, which the caller frees.
char *string_scalar_new(const char *text, void **value);

// value_release frees an OrtValue.
void value_release(void *value);

// run_on_card runs an OrtSession with values in the card's memory. It returns before the card has done
// the work, which it gives to the session's stream, and neither makes nor uses ONNX Runtime's own
// graphs. It returns NULL or an error, which the caller frees.
char *run_on_card(void *session, const char *const *inputs, const void *const *in, size_t count,
	const char *const *outputs, size_t outs, void **out);

// session_run runs an OrtSession with OrtRunOptions, which may be NULL. It sets the values of out that
// are NULL to those that it allocates, which the caller frees. It returns NULL or an error, which the
// caller frees.
char *session_run(void *session, const void *options, char *const *inputs, void *const *in,
	size_t count, char *const *outputs, size_t outs, void **out);

// MAX_RANK is the most dimensions that tensor_shape returns: those that a query may have.
#define MAX_RANK 64

// STRINGS is the ONNXTensorElementDataType of strings.
#define STRINGS 8

// tensor_shape returns the dimensions of an OrtValue and the number of its elements, tensor_data where
// they are, strings_length how many bytes its strings have together, strings_copy the strings one
// behind the other, and where each begins. Each returns NULL or an error, which the caller frees.
char *tensor_shape(void *value, int64_t *shape, size_t *rank, size_t *count);
char *tensor_data(void *value, void **data);
char *strings_length(void *value, size_t *length);
char *strings_copy(void *value, void *text, size_t length, size_t *begins, size_t count);

#endif
