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
	SHIM_MODE,   // an enum bags_mode
	SHIM_FORM,   // an enum bags_form
	SHIM_TABLE,  // the input with the rows
	SHIM_SCALES, // the input with the rows' scales, or -1
	// The input with the ids' offsets, or -1; then all of the ids are this table's, and SHIM_REDUCE is
	// of no use.
	SHIM_OFFSETS,
	SHIM_LAST,    // whether offsets end with the number of ids, so that there is one more than bags
	SHIM_OPEN,    // bags_table.open
	SHIM_ZERO,    // bags_table.zero
	SHIM_WEIGHTS, // the input with the ids' weights, or -1
	SHIM_FIELDS
};

// shim_open finds ONNX Runtime in the library at path, which this process has loaded, and makes the
// operator. It returns NULL or an error, which is valid until the next call. Call it once.
const char *shim_open(const char *path);

// shim_register adds the operator to an OrtSessionOptions. It returns NULL or an error, which the
// caller frees.
char *shim_register(void *options);

#endif
