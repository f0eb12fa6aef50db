// Compares bags_sum with the obvious loop, bit for bit, for all instruction sets of the processor and
// random tables, ids and shapes. Memory has exactly the size that is needed, so that a sanitizer sees
// every read beyond it. With an argument it only computes a fixed amount, whose instructions are
// counted: the form's number.
#include "../bags.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 1;

static uint64_t next(void) {
	state = state * 6364136223846793005u + 1442695040888963407u;
	return state >> 20;
}

static int64_t below(int64_t n) { return (int64_t)(next() % (uint64_t)n); }

// half is the definition of a 16-bit float.
static float half(uint16_t h) {
	int exponent = h >> 10 & 31, mantissa = h & 1023;
	float sign = h >> 15 ? -1.0f : 1.0f;
	if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
	if (exponent == 0) return sign * ldexpf((float)mantissa, -24);
	return sign * ldexpf((float)(mantissa + 1024), exponent - 25);
}

static int64_t size_of(enum bags_form form, int64_t dim) {
	static const int bits[] = {32, 16, 8, 4};
	return dim * bits[form] / 8;
}

static float value(const struct bags_table *t, int64_t row, int64_t j) {
	const char *p = (const char *)t->rows + row * size_of(t->form, t->dim);
	switch (t->form) {
	case BAGS_FP32: return ((const float *)p)[j];
	case BAGS_FP16: return half(((const uint16_t *)p)[j]);
	case BAGS_INT8: return (float)((const int8_t *)p)[j] * t->scales[row];
	default: {
		int64_t width = t->dim / 2;
		int b = ((const uint8_t *)p)[j % width];
		return (float)((j < width ? b & 15 : b >> 4) - 8) * t->scales[row];
	}
	}
}

// id_index is written from the comment in bags.h.
static int64_t id_index(const struct bags_table *t, int64_t b, int64_t l) {
	int64_t row = b / t->inner;
	return row / t->outer * t->group + row % t->outer * t->lookups * t->inner + l * t->inner +
		b % t->inner;
}

static int64_t id_of(const struct bags_table *t, int64_t i) {
	return t->id_size == 8 ? ((const int64_t *)t->ids)[i] : ((const int32_t *)t->ids)[i];
}

static int64_t offset_of(const struct bags_table *t, int64_t i) {
	return t->offset_size == 8 ? ((const int64_t *)t->offsets)[i] : ((const int32_t *)t->offsets)[i];
}

static void set_id(const struct bags_table *t, int64_t i, int64_t id) {
	if (t->id_size == 8)
		((int64_t *)t->ids)[i] = id;
	else
		((int32_t *)t->ids)[i] = (int32_t)id;
}

static void fail(const char *target, const char *what, const struct bags_table *t) {
	printf("%s: %s: form %d, dim %lld, count %lld, lookups %lld, outer %lld, inner %lld\n", target,
		what, (int)t->form, (long long)t->dim, (long long)t->count, (long long)t->lookups,
		(long long)t->outer, (long long)t->inner);
	exit(1);
}

static void clear(struct bags_table *t) {
	free((void *)t->rows);
	free((void *)t->scales);
	free((void *)t->ids);
	free((void *)t->offsets);
	free((void *)t->weights);
}

// fill makes a table with ragged bags, or if that is below 0 with bags as check lays them out.
static void fill(struct bags_table *t, int64_t groups, int64_t ragged) {
	static const int64_t dims[] = {1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80, 100, 128, 200};
	t->form = (enum bags_form)below(4);
	t->dim = dims[below(sizeof dims / sizeof *dims)];
	if (t->form == BAGS_INT4) t->dim *= 2;
	t->count = 1 + below(40);
	t->mode = t->form == BAGS_FP32 ? (enum bags_mode)below(3) : (enum bags_mode)below(2);
	t->offsets = t->weights = NULL;
	size_t bytes = (size_t)(t->count * size_of(t->form, t->dim));
	uint8_t *rows = malloc(bytes);
	for (size_t i = 0; i < bytes; i++) rows[i] = (uint8_t)next();
	if (t->form == BAGS_FP32)
		for (size_t i = 0; i < bytes / 4; i++)
			((float *)rows)[i] = (float)below(1 << 24) / (1 << 20) - 8;
	t->rows = rows;
	t->scales = NULL;
	if (t->form == BAGS_INT8 || t->form == BAGS_INT4) {
		float *scales = malloc((size_t)t->count * 4);
		for (int64_t i = 0; i < t->count; i++) scales[i] = (float)below(1000) / 777;
		t->scales = scales;
	}
	t->id_size = below(2) ? 8 : 4;
	t->lookups = below(2) ? below(4) : below(60);
	int64_t ids = groups * t->group + t->outer * t->inner * t->lookups; // see check
	if (ragged >= 0) { // offsets, some of which fit no slice
		t->id_count = ids = below(60);
		t->offset_size = below(2) ? 8 : 4;
		t->offset_count = ragged + below(2);
		t->open = (int)below(2);
		t->zero = (int)below(2);
		t->offsets = malloc((size_t)(t->offset_count * t->offset_size));
		int64_t offset = below(4) ? 0 : below(2 * ids + 8) - ids - 4;
		for (int64_t i = 0; i < t->offset_count; i++) {
			if (t->offset_size == 8)
				((int64_t *)t->offsets)[i] = offset;
			else
				((int32_t *)t->offsets)[i] = (int32_t)offset;
			offset = below(8) ? offset + below(3) * below(ids / (ragged + 1) + 2)
							  : below(2 * ids + 8) - ids - 4;
		}
	}
	if (t->form == BAGS_FP32 && below(2)) {
		float *weights = malloc((size_t)ids * 4);
		for (int64_t i = 0; i < ids; i++) weights[i] = (float)below(1000) / 333 - 1;
		t->weights = weights;
	}
	t->ids = malloc((size_t)(ids * t->id_size));
	for (int64_t i = 0; i < ids; i++) set_id(t, i, below(2 * t->count) - t->count);
}

// slice writes from comments in bags.h which ids a bag has, and returns what its mean is divided by and
// the maximum of an empty one.
static float slice(const struct bags_table *t, int64_t b, int64_t bags, int64_t *from, int64_t *to,
	float *empty) {
	*empty = -INFINITY;
	*from = 0;
	*to = t->lookups;
	if (!t->offsets) return (float)t->lookups;
	int64_t begin = offset_of(t, b), end = b + 1 < t->offset_count ? offset_of(t, b + 1) : t->id_count;
	const int open = t->open && b + 1 == bags && begin != end;
	float by = 0;
	if (open) by = t->id_count - begin > 0 ? (float)(t->id_count - begin) : 1;
	if (t->zero && begin == end) *empty = 0;
	if (open && t->mode == BAGS_MAX) end = t->id_count;
	if (begin < 0) begin += t->id_count;
	if (end < 0) end += t->id_count;
	*from = begin < 0 ? 0 : begin > t->id_count ? t->id_count : begin;
	*to = end < *from ? *from : end > t->id_count ? t->id_count : end;
	return open ? by : (float)(*to - *from);
}

// value_of is element j of a bag by the obvious loop.
static float value_of(const struct bags_table *t, int64_t b, int64_t bags, int64_t j) {
	int64_t from, to;
	float empty, sum = 0, by = slice(t, b, bags, &from, &to, &empty);
	if (t->mode == BAGS_MAX) sum = empty;
	for (int64_t l = from; l < to; l++) {
		const int64_t i = t->offsets ? l : id_index(t, b, l), id = id_of(t, i);
		volatile float v = value(t, id < 0 ? id + t->count : id, j);
		if (t->weights && t->mode != BAGS_MAX) v *= t->weights[i];
		if (t->mode != BAGS_MAX)
			sum += v;
		else if (v > sum)
			sum = v;
	}
	return t->mode == BAGS_MEAN && to > from ? sum / by : sum;
}

static void check(void) {
	struct bags_table t[3];
	struct bags_fault fault;
	const int64_t tables = 1 + below(3), groups = 1 + below(4), outer = 1 + below(3);
	const int64_t inner = below(3) ? 1 : 1 + below(3), bags = groups * outer * inner;
	int64_t width = 0;
	for (int i = 0; i < tables; i++) {
		t[i].outer = outer;
		t[i].inner = inner;
		t[i].group = 0;
		// The groups lie apart by some more ids than they have; memory ends with the last.
		int64_t apart = below(3);
		uint64_t before = state;
		fill(&t[i], 0, -1);
		state = before;
		clear(&t[i]);
		t[i].group = outer * inner * t[i].lookups + apart;
		const int64_t ragged = below(3) ? -1 : bags;
		if (ragged >= 0) t[i].inner = t[i].outer = 1;
		fill(&t[i], groups - 1, ragged);
		width += t[i].dim;
	}
	float *out = malloc((size_t)(bags * width) * 4), *want = malloc((size_t)(bags * width) * 4);
	int64_t at = 0;
	for (int i = 0; i < tables; i++) {
		for (int64_t b = 0; b < bags; b++)
			for (int64_t j = 0; j < t[i].dim; j++) {
				want[b * width + at + j] = value_of(&t[i], b, bags, j);
			}
		t[i].out = out + at;
		at += t[i].dim;
	}
	for (int k = 0; k < bags_targets(); k++) {
		bags_use(k);
		const int distance = (int)below(50);
		memset(out, 0xff, (size_t)(bags * width) * 4);
		int64_t parts = 1 + below(4), total = bags * tables;
		for (int64_t p = 0; p < parts; p++)
			if (bags_sum(t, bags, width, total * p / parts, total * (p + 1) / parts, distance,
					&fault) != 0)
				fail(bags_target(k), "a fault without a bad id", t);
		for (int64_t i = 0; i < bags * width; i++)
			if (memcmp(&out[i], &want[i], 4) != 0 && !(isnan(out[i]) && isnan(want[i])))
				fail(bags_target(k), "another sum", t);
	}
	// One id outside of its table.
	static const int64_t far[] = {0, 1, 1000, INT32_MAX, INT64_MAX / 2, INT64_MAX};
	struct bags_table *bad = &t[below(tables)];
	if (!bad->offsets && bad->lookups > 0) {
		int64_t i = id_index(bad, below(bags), below(bad->lookups)), before = id_of(bad, i);
		int64_t id = far[below(bad->id_size == 8 ? 6 : 4)];
		const int64_t most = bad->id_size == 8 ? INT64_MAX : INT32_MAX;
		if (below(2))
			id = id > most - bad->count ? most : bad->count + id;
		else
			id = id > most - bad->count ? -most - 1 : -bad->count - 1 - id;
		set_id(bad, i, id);
		for (int k = 0; k < bags_targets(); k++) {
			bags_use(k);
			if (bags_sum(t, bags, width, 0, bags * tables, BAGS_DISTANCE, &fault) != -1)
				fail(bags_target(k), "no fault for a bad id", bad);
			if (fault.id != id || fault.count != bad->count)
				fail(bags_target(k), "a fault of another id", bad);
		}
		set_id(bad, i, before);
	}
	for (int i = 0; i < tables; i++) clear(&t[i]);
	free(out);
	free(want);
}

// count sums 20,000 rows of 64 elements, 50 at a time.
static int count(enum bags_form form) {
	enum { ROWS = 100, DIM = 64, LOOKUPS = 50, BAGS = 400 };
	static float rows[ROWS * DIM], scales[ROWS], out[BAGS * DIM];
	static int64_t ids[LOOKUPS * BAGS];
	for (int i = 0; i < LOOKUPS * BAGS; i++) ids[i] = below(ROWS);
	struct bags_table t = {.rows = rows, .scales = form >= BAGS_INT8 ? scales : NULL, .count = ROWS,
		.dim = DIM, .form = form, .ids = ids, .id_size = 8, .lookups = LOOKUPS, .outer = BAGS,
		.inner = 1, .out = out};
	struct bags_fault fault;
	return bags_sum(&t, BAGS, DIM, 0, BAGS, BAGS_DISTANCE, &fault);
}

// measure prints the distance that is measured on tables of 64 MB, with rows of several lengths.
static void measure(void) {
	enum { BYTES = 64 << 20 };
	float *rows = malloc(BYTES), scales[] = {1, 1, 1};
	memset(rows, 1, BYTES); // pages of its own
	for (int64_t dim = 16; dim <= 256; dim *= 4) {
		struct bags_table t = {.rows = rows, .count = BYTES / 4 / dim, .dim = dim};
		const int distance = bags_distance(&t);
		if (distance < 8 || distance > 128) fail("best", "a distance that was not tried", &t);
		printf("rows of %lld bytes are fetched %d ahead\n", (long long)(4 * dim), distance);
	}
	// Memory ends with the table, whatever its length.
	char *few = malloc(3 * 5);
	memset(few, 1, 3 * 5);
	struct bags_table t = {.rows = few, .scales = scales, .count = 3, .dim = 5, .form = BAGS_INT8};
	bags_distance(&t);
	free(few);
	free(rows);
}

int main(int argc, char **argv) {
	if (argc > 1) {
		if (strcmp(argv[1], "none") == 0) return 0;
		return count((enum bags_form)atoi(argv[1]));
	}
	for (int i = 0; i < 1000; i++) check();
	measure();
	printf("1000 cases right with:");
	for (int k = 0; k < bags_targets(); k++) printf(" %s", bags_target(k));
	printf("\n");
	return 0;
}
