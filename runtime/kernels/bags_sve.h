// The sum of one bag's rows with vectors whose length the processor chooses. They cannot be elements
// of an array, so bags_target.h has no use for them.
#define SVE __attribute__((target("+sve")))
#define INLINE_SVE static inline __attribute__((always_inline)) SVE

static SVE int64_t lanes_sve(void) { return (int64_t)svcntw(); }

// load_sve loads the elements at p that are on, as floats.
INLINE_SVE svfloat32_t load_sve(svbool_t on, enum bags_form form, const uint8_t *p, int shift) {
	switch (form) {
	case BAGS_FP32: return svld1_f32(on, (const float *)p);
	case BAGS_FP16:
		return svcvt_f32_f16_x(on, svreinterpret_f16_u32(svld1uh_u32(on, (const uint16_t *)p)));
	case BAGS_INT8: return svcvt_f32_s32_x(on, svld1sb_s32(on, (const int8_t *)p));
	default: {
		svuint32_t b = svlsr_n_u32_x(on, svld1ub_u32(on, p), (uint64_t)shift);
		b = svand_n_u32_x(on, b, 15);
		return svcvt_f32_s32_x(on, svsub_n_s32_x(on, svreinterpret_s32_u32(b), 8));
	}
	}
}

// columns_sve adds the elements [0, n) of all rows of a bag, at most four vectors, and stores them at
// out. p is the first of these of the table's first row. It returns the index of the first bad
// lookup, or -1.
INLINE_SVE int64_t columns_sve(const struct bags_table *t, const uint8_t *p, int64_t bytes,
	const struct bag_span *span, float *out, enum bags_form form, int id_size, int64_t n, int shift, struct ahead *ahead) {
	const int64_t lanes = lanes_sve();
	const uint64_t count = (uint64_t)t->count;
	const int scaled = form == BAGS_INT8 || form == BAGS_INT4;
	svfloat32_t scale = svdup_n_f32(1);
#define EACH(f) f(0) f(1) f(2) f(3)
#define CLEAR(i)                                                                                       \
	const svbool_t on##i = svwhilelt_b32_s64(i * lanes, n);                                            \
	svfloat32_t sum##i = svdup_n_f32(0);
	EACH(CLEAR)
	int64_t at = span->at;
	for (int64_t l = 0; l < span->n; l++, at += t->inner) {
		uint64_t id = id_size == 8 ? (uint64_t)((const int64_t *)t->ids)[at]
								   : (uint64_t)(int64_t)((const int32_t *)t->ids)[at];
		if ((int64_t)id < 0) id += count;
		if (__builtin_expect(id >= count, 0)) return l;
		if (ahead) ahead_next(ahead);
		const uint8_t *row = p + (int64_t)id * bytes;
		if (scaled) scale = svdup_n_f32(t->scales[id]);
#define ADD(i)                                                                                         \
	if (i == 0 || i * lanes < n) {                                                                     \
		svfloat32_t v = load_sve(on##i, form, row + bytes_of(form, i * lanes), shift);                 \
		if (scaled) v = svmul_f32_x(on##i, v, scale);                                                  \
		sum##i = svadd_f32_x(on##i, sum##i, v);                                                        \
	}
		EACH(ADD)
	}
#define STORE(i)                                                                                       \
	if (t->mode == BAGS_MEAN && span->n > 0) sum##i = svdiv_n_f32_x(on##i, sum##i, span->by);          \
	svst1_f32(on##i, out + i * lanes, sum##i);
	EACH(STORE)
#undef EACH
#undef CLEAR
#undef ADD
#undef STORE
	return -1;
}

// bag_sve computes one output row. Only the first pass over the rows fetches ahead.
INLINE_SVE int64_t bag_sve(const struct bags_table *t, const struct bag_span *span, float *out,
	enum bags_form form, int id_size, struct ahead *ahead) {
	const int64_t bytes = bags_row_bytes(t), most = 4 * lanes_sve();
	for (int half = 0; half < (form == BAGS_INT4 ? 2 : 1); half++) {
		const uint8_t *p = t->rows;
		for (int64_t left = form == BAGS_INT4 ? t->dim / 2 : t->dim; left > 0;) {
			const int64_t n = left < most ? left : most;
			const int64_t bad = columns_sve(t, p, bytes, span, out, form, id_size, n, 4 * half, ahead);
			if (bad >= 0) return bad;
			ahead = NULL;
			p += bytes_of(form, n);
			out += n;
			left -= n;
		}
	}
	return -1;
}
