// Sums of rows of embedding tables. This file and bags.c depend on nothing but the C library, so that
// they can be tested alone (see testdata/bags_test.c).
#ifndef MUSTER_BAGS_H
#define MUSTER_BAGS_H

#include <stddef.h>
#include <stdint.h>

// How a table stores its rows. The numbers are those of the attribute "tables" of the operator.
enum bags_form {
	BAGS_FP32 = 0,
	BAGS_FP16 = 1,
	BAGS_INT8 = 2, // signed, times the scale of the row
	// 4 bits each, 8 above their value, times the scale of the row. A byte holds element j of a row
	// in its low half, and the element half a row after j in its high half.
	BAGS_INT4 = 3,
};

// What becomes of a bag's rows. The mean of none is 0.
enum bags_mode {
	BAGS_SUM = 0,
	BAGS_MEAN = 1,
	BAGS_MAX = 2, // with BAGS_FP32 only
};

// A bags_table is a table and the ids that are looked up in it. A bag is the ids of one output row:
// the lookups [0, lookups) of bag b are the ids at
//
//	ids[b / (inner * outer) * group + b / inner % outer * lookups * inner + l * inner + b % inner]
//
// A group is thus a contiguous range of outer * lookups * inner ids.
//
// With offsets, bags have as many lookups as these say: bag b has the ids from offset b on to the next
// offset, or to the last id. Offsets are bounds as those of the operator Slice: negative ones count
// from the end, others are cut off at both ends, and a bag that ends before it begins is empty.
struct bags_table {
	const void *rows;
	const float *scales; // of each row, for integers
	int64_t count;       // of rows
	int64_t dim;         // elements of a row; even for BAGS_INT4
	enum bags_form form;

	const void *ids;
	int id_size; // 4 or 8 bytes, signed
	int64_t lookups, outer, inner, group;

	const void *offsets; // NULL: all bags have the same number of lookups
	int offset_size;     // 4 or 8 bytes, signed
	int64_t offset_count, id_count;
	// open is whether the last bag's end is taken for the last id where its mean is divided and its
	// maximum sought; see match.go.
	int open;
	int zero; // whether the maximum of a bag of two equal offsets is 0; that of other empty ones is -inf

	enum bags_mode mode;
	const float *weights; // of each id, by which its row is multiplied; NULL: none. With BAGS_FP32 only

	float *out; // of bag 0; that of bag b is b * stride of the call after it
};

// A bags_fault is an id outside of its table.
struct bags_fault {
	int64_t id, count;
};

// bags_sum computes the bags [from, to) of several tables: bags of the first table come first, and
// each table has as many, bags. An output row is the sum of its rows in the order of their ids,
// element by element in float32; so all instruction sets give the same bits. A negative id counts
// from the end of the table. It returns 0, or -1 with *fault set when an id is outside of its table;
// it never reads outside of a table. Memory is fetched distance rows ahead of the sum; 0 for none.
int bags_sum(const struct bags_table *tables, int64_t bags, int64_t stride, int64_t from, int64_t to,
	int distance, struct bags_fault *fault);

// bags_row_bytes returns the length of a table's rows in memory.
int64_t bags_row_bytes(const struct bags_table *t);

// BAGS_DISTANCE is right nearly everywhere.
enum { BAGS_DISTANCE = 32 };

// bags_distance measures how many rows ahead of the sum those of a table are best fetched on this
// machine. It takes some ms and reads the first 64 MB of the table, which must have more bytes than
// caches hold. It uses no ids of the table.
int bags_distance(const struct bags_table *table);

// bags_targets returns how many instruction sets this processor supports, the best first, and
// bags_target the name of one. bags_use makes bags_sum use it. These are not safe for concurrent
// use; without a call of bags_use, bags_sum uses the best.
int bags_targets(void);
const char *bags_target(int i);
void bags_use(int i);

#endif
