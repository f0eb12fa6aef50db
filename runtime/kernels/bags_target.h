// The sum of rows, for one instruction set. bags.c includes this file once for each, with TARGET and
// ATTRIBUTE defined, and LANES, VEC, SPLAT and load16; without LANES the instruction set has a
// function bag of its own.

#define INLINE static inline __attribute__((always_inline)) ATTRIBUTE
#ifdef LANES
enum { NAME(PER16) = 16 / LANES };

// The vectors of a bag's sum are kept in registers: the compiler does that for an array if all its
// indices are constants from the start, hence no loops over them.
#if LANES == 16
#define EACH(f, b) f(b, 0)
#elif LANES == 8
#define EACH(f, b) f(b, 0) f(b, 1)
#else
#define EACH(f, b) f(b, 0) f(b, 1) f(b, 2) f(b, 3)
#endif
#define BLOCKS(f)                                                                                      \
	f(0) if (blocks > 1) { f(1) }                                                                      \
	if (blocks > 2) { f(2) }                                                                           \
	if (blocks > 3) { f(3) }

// columns adds the elements [0, 16 * blocks) of all rows of a bag, and stores them at out. p is the
// first of these of the table's first row. It returns the index of the first bad lookup, or -1.
INLINE int64_t NAME(columns)(const struct bags_table *t, const uint8_t *p, int64_t bytes,
	const struct bag_span *span, float *out, enum bags_form form, int id_size, int blocks, int shift, struct ahead *ahead) {
	VEC sum[4 * NAME(PER16)], v[NAME(PER16)], scale = SPLAT(1);
	const int64_t n = span->n, step = t->inner;
	int64_t at = span->at;
	const uint64_t count = (uint64_t)t->count;
#define CLEAR(b, i) sum[b * NAME(PER16) + i] = SPLAT(0);
#define CLEAR_BLOCK(b) EACH(CLEAR, b)
	BLOCKS(CLEAR_BLOCK)
	for (int64_t l = 0; l < n; l++, at += step) {
		uint64_t id = id_size == 8 ? (uint64_t)((const int64_t *)t->ids)[at]
								   : (uint64_t)(int64_t)((const int32_t *)t->ids)[at];
		if ((int64_t)id < 0) id += count;
		if (__builtin_expect(id >= count, 0)) return l;
		if (ahead) ahead_next(ahead);
		const uint8_t *row = p + (int64_t)id * bytes;
		const int scaled = form == BAGS_INT8 || form == BAGS_INT4;
		if (scaled) scale = SPLAT(t->scales[id]);
#define ADD(b, i) sum[b * NAME(PER16) + i] += v[i];
#define ADD_BLOCK(b)                                                                                   \
	NAME(load16)(v, form, row + bytes_of(form, 16 * b), shift);                                        \
	if (scaled) { EACH(SCALE, b) }                                                                     \
	EACH(ADD, b)
#define SCALE(b, i) v[i] *= scale;
		BLOCKS(ADD_BLOCK)
	}
	if (t->mode == BAGS_MEAN && n > 0) {
		VEC by = SPLAT(span->by);
#define DIVIDE(b, i) sum[b * NAME(PER16) + i] /= by;
#define DIVIDE_BLOCK(b) EACH(DIVIDE, b)
		BLOCKS(DIVIDE_BLOCK)
	}
#define STORE(b, i) memcpy(out + 16 * b + LANES * i, &sum[b * NAME(PER16) + i], sizeof(VEC));
#define STORE_BLOCK(b) EACH(STORE, b)
	BLOCKS(STORE_BLOCK)
	return -1;
}

// tail is columns for n < 16 elements.
INLINE int64_t NAME(tail)(const struct bags_table *t, const uint8_t *p, int64_t bytes,
	const struct bag_span *span, float *out, enum bags_form form, int n, int shift, struct ahead *ahead) {
	float sum[16] = {0};
	int64_t at = span->at;
	for (int64_t l = 0; l < span->n; l++, at += t->inner) {
		uint64_t id = (uint64_t)id_at(t, at), count = (uint64_t)t->count;
		if ((int64_t)id < 0) id += count;
		if (__builtin_expect(id >= count, 0)) return l;
		if (ahead) ahead_next(ahead);
		const uint8_t *row = p + (int64_t)id * bytes;
		float scale = 1;
		if (form == BAGS_INT8 || form == BAGS_INT4) scale = t->scales[id];
		for (int j = 0; j < n; j++) {
			float v = element(form, row, j, shift);
			if (form == BAGS_INT8 || form == BAGS_INT4) v *= scale;
			sum[j] += v;
		}
	}
	const int mean = t->mode == BAGS_MEAN && span->n > 0;
	for (int j = 0; j < n; j++) out[j] = mean ? sum[j] / span->by : sum[j];
	return -1;
}

// bag computes one output row. Only the first pass over the rows fetches ahead.
INLINE int64_t NAME(bag)(const struct bags_table *t, const struct bag_span *span, float *out,
	enum bags_form form, int id_size, struct ahead *ahead) {
	const int64_t bytes = bags_row_bytes(t);
	int64_t bad = -1;
	for (int half = 0; half < (form == BAGS_INT4 ? 2 : 1); half++) {
		const uint8_t *p = t->rows;
		int64_t left = form == BAGS_INT4 ? t->dim / 2 : t->dim;
		const int shift = 4 * half;
		while (left > 0) {
			int64_t n = left < 64 ? left & -16 : 64;
			switch (n) {
#define PASS(blocks) bad = NAME(columns)(t, p, bytes, span, out, form, id_size, blocks, shift, ahead)
			case 64: PASS(4); break;
			case 48: PASS(3); break;
			case 32: PASS(2); break;
			case 16: PASS(1); break;
#undef PASS
			default:
				n = left;
				bad = NAME(tail)(t, p, bytes, span, out, form, (int)n, shift, ahead);
			}
			if (bad >= 0) return bad;
			ahead = NULL;
			p += bytes_of(form, n);
			out += n;
			left -= n;
		}
	}
	return -1;
}
#endif // LANES

#define BAG(form, id_size)                                                                             \
	static ATTRIBUTE int64_t NAME(JOIN(bag##form, id_size))(                                           \
		const struct bags_table *t, const struct bag_span *span, float *out, struct ahead *ahead) {    \
		return NAME(bag)(t, span, out, form, id_size, ahead);                                          \
	}
BAG(BAGS_FP32, 4)
BAG(BAGS_FP32, 8)
BAG(BAGS_FP16, 4)
BAG(BAGS_FP16, 8)
BAG(BAGS_INT8, 4)
BAG(BAGS_INT8, 8)
BAG(BAGS_INT4, 4)
BAG(BAGS_INT4, 8)
#undef BAG

static int NAME(sum)(const struct bags_table *tables, int64_t bags, int64_t stride, int64_t from,
	int64_t to, int distance, struct bags_fault *fault) {
	static int64_t (*const functions[4][2])(const struct bags_table *, const struct bag_span *,
		float *, struct ahead *) = {
		{NAME(JOIN(bagBAGS_FP32, 4)), NAME(JOIN(bagBAGS_FP32, 8))},
		{NAME(JOIN(bagBAGS_FP16, 4)), NAME(JOIN(bagBAGS_FP16, 8))},
		{NAME(JOIN(bagBAGS_INT8, 4)), NAME(JOIN(bagBAGS_INT8, 8))},
		{NAME(JOIN(bagBAGS_INT4, 4)), NAME(JOIN(bagBAGS_INT4, 8))},
	};
	if (from >= to) return 0;
	const struct bags_table *t = tables + from / bags;
	int64_t bag = from % bags;
	struct ahead ahead = {.table = t, .bags = bags, .bag = bag, .left = distance ? to - from : 0};
	ahead_enter(&ahead);
	for (int i = 0; i < distance; i++) ahead_next(&ahead);
	for (; from < to; from++, bag++) {
		if (bag == bags) {
			bag = 0;
			t++;
		}
		const struct bag_span span = span_of(t, bag, bags);
		float *out = t->out + bag * stride;
		int64_t bad = __builtin_expect(t->weights != NULL || t->mode == BAGS_MAX, 0)
						  ? bag_of_few(t, &span, out, &ahead)
						  : functions[t->form][t->id_size == 8](t, &span, out, &ahead);
		if (bad >= 0) {
			fault->id = id_at(t, span.at + bad * t->inner);
			fault->count = t->count;
			return -1;
		}
	}
	return 0;
}

#undef INLINE
#undef EACH
#undef BLOCKS
#undef CLEAR
#undef CLEAR_BLOCK
#undef ADD
#undef SCALE
#undef ADD_BLOCK
#undef DIVIDE
#undef DIVIDE_BLOCK
#undef STORE
#undef STORE_BLOCK
#undef TARGET
#undef ATTRIBUTE
#undef LANES
#undef VEC
#undef SPLAT
