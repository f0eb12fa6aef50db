#ifndef MUSTER_SHIM_H
#define MUSTER_SHIM_H

#include <stddef.h>
#include <stdint.h>

// What the attribute "bags" of the operator says of a table, each an int64.
enum shim_field {
	SHIM_IDS,    // the input with its ids
	SHIM_SPLIT,  // the axis of the ids of which only a part is this table's, or -1
	SHIM_START,  // of that part
	SHIM_SIZE,   // of that part
	SHIM_DROP,   // whether that axis, of size 1, is no axis of the output
	SHIM_REDUCE, // the axis of the ids over which rows are summed, or -1; not before SHIM_SPLIT
	SHIM_KEEP,   // whether that axis stays, with size 1
	SHIM_MEAN,   // whether the sum is divided by its size
	SHIM_FORM,   // an enum bags_form
	SHIM_TABLE,  // the input with the rows
	SHIM_SCALES, // the input with the rows' scales, or -1
	SHIM_FIELDS
};

// shim_open finds ONNX Runtime in the library at path, which this process has loaded, and makes the
// operator. It returns NULL or an error, which is valid until the next call. Call it once.
const char *shim_open(const char *path);

// shim_register adds the operator to an OrtSessionOptions. It returns NULL or an error, which the
// caller frees.
char *shim_register(void *options);

#endif
