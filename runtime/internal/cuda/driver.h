#ifndef MUSTER_CUDA_DRIVER_H
#define MUSTER_CUDA_DRIVER_H

#include <stddef.h>

// All functions but the last two return a CUresult, 0 for success. All may be called on any thread.

// cuda_open finds libcuda.so.1's functions and the card's primary context, which ONNX Runtime uses
// too. It sets *missing to the name of a function that is not there, or else to NULL. Call it after
// cuInit, and before the others; a call after one that succeeded does nothing.
int cuda_open(const char **missing);

// cuda_allocate allocates size bytes of the machine's memory that the card reads and writes by itself,
// and as many of the card's.
int cuda_allocate(size_t size, void **host, void **device);
int cuda_free(void *host, void *device);

// cuda_device_allocate allocates size bytes of the card's memory.
int cuda_device_allocate(size_t size, void **device);
int cuda_device_free(void *device);

int cuda_stream(void **stream);
int cuda_stream_free(void *stream);
int cuda_wait(void *stream); // until all work of the stream is done

int cuda_to_device(void *device, const void *host, size_t size, void *stream);
int cuda_to_host(void *host, const void *device, size_t size, void *stream);

// cuda_capture has the stream note its work instead of doing it, until cuda_captured, which makes a
// graph of it. These two must be called on the same thread.
int cuda_capture(void *stream);
int cuda_captured(void *stream, void **graph);
int cuda_graph_free(void *graph);

// cuda_launch does the work of a graph and waits for it.
int cuda_launch(void *graph, void *stream);

// cuda_workspace_size returns how many bytes NVIDIA advises for a handle of cuBLAS on the card.
size_t cuda_workspace_size(void);

// cuda_text is the driver's text of a CUresult.
const char *cuda_text(int code);

#endif
