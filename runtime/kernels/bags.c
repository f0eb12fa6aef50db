// Products and sums are rounded each on its own: with fused operations the answer would depend on the
// instruction set. The pragma stands before the headers, whose functions are inlined.
#if defined(__clang__)
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC optimize("O2", "fp-contract=off")
#endif

#include "bags.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#if defined(__linux__)
#include <asm/hwcap.h>
#define MUSTER_SVE
#include <arm_sve.h>
#endif
#endif

// FETCH fetches to the second cache: that has many more fetches in flight than the first.
// docs/kernels.md has what was measured.
#define FETCH(address) __builtin_prefetch(address, 0, 2)

// fetched is the most bytes of a row that are fetched ahead. The processor itself fetches the rest of
// a longer one.
enum { FETCHED = 1024, LINE = 64 };

int64_t bags_row_bytes(const struct bags_table *t) {
	switch (t->form) {
	case BAGS_FP32: return 4 * t->dim;
	case BAGS_FP16: return 2 * t->dim;
	case BAGS_INT8: return t->dim;
	default: return t->dim / 2;
	}
}

static inline int64_t id_at(const struct bags_table *t, int64_t i) {
	return t->id_size == 8 ? ((const int64_t *)t->ids)[i] : ((const int32_t *)t->ids)[i];
}

// first_id returns the index of the first id of a bag.
static inline int64_t first_id(const struct bags_table *t, int64_t bag) {
	int64_t row = bag, in = 0;
	if (t->inner != 1) {
		row = bag / t->inner;
		in = bag % t->inner;
	}
	if (t->outer == 1) return row * t->group + in;
	return row / t->outer * t->group + row % t->outer * t->lookups * t->inner + in;
}

// A bag_span is the lookups [at, at + n * inner) of a bag.
struct bag_span {
	int64_t at, n;
	float by;    // what a mean is divided by, > 0
	float empty; // the value of a bag without rows
};

static inline int64_t offset_at(const struct bags_table *t, int64_t i) {
	return t->offset_size == 8 ? ((const int64_t *)t->offsets)[i] : ((const int32_t *)t->offsets)[i];
}

// bound returns an offset as Slice takes it.
static inline int64_t bound(int64_t offset, int64_t n) {
	if (offset < 0) offset += n;
	return offset < 0 ? 0 : offset > n ? n : offset;
}

static __attribute__((noinline)) struct bag_span ragged_span(
	const struct bags_table *t, int64_t bag, int64_t bags) {
	const int64_t from = offset_at(t, bag);
	int64_t to = bag + 1 < t->offset_count ? offset_at(t, bag + 1) : t->id_count;
	const int same = from == to, open = t->open && bag + 1 == bags;
	struct bag_span s = {.at = bound(from, t->id_count), .empty = 0};
	if (t->mode == BAGS_MAX && !(t->zero && same)) s.empty = -__builtin_inff();
	if (t->mode == BAGS_MAX && open && !same) to = t->id_count;
	s.n = bound(to, t->id_count) - s.at;
	if (s.n < 0) s.n = 0;
	s.by = (float)s.n;
	if (open && !same) s.by = t->id_count > from ? (float)((uint64_t)t->id_count - (uint64_t)from) : 1.0f;
	return s;
}

static inline __attribute__((always_inline)) struct bag_span span_of(
	const struct bags_table *t, int64_t bag, int64_t bags) {
	if (__builtin_expect(t->offsets != NULL, 0)) return ragged_span(t, bag, bags);
	struct bag_span s = {.at = first_id(t, bag), .n = t->lookups, .by = (float)t->lookups, .empty = 0};
	if (t->mode == BAGS_MAX) s.empty = -__builtin_inff();
	return s;
}

// An ahead walks over the ids of several tables some rows before the sum does.
struct ahead {
	const struct bags_table *table;
	int64_t bags, bag, left; // left is how many bags, this one included, come until the end
	int64_t at, lookup;      // the next id
	int64_t bytes;           // of a row of the table
};

static __attribute__((noinline)) void ahead_enter(struct ahead *a) {
	while (a->left > 0) {
		if (a->bag == a->bags) {
			a->table++;
			a->bag = 0;
		}
		const struct bag_span s = span_of(a->table, a->bag, a->bags);
		a->at = s.at;
		a->lookup = s.n;
		if (s.n > 0) break;
		a->bag++;
		a->left--;
	}
	if (a->left <= 0) return;
	a->bytes = bags_row_bytes(a->table);
}

static inline __attribute__((always_inline)) void ahead_next(struct ahead *a) {
	if (a->left <= 0) return;
	const struct bags_table *t = a->table;
	uint64_t id = (uint64_t)id_at(t, a->at);
	if ((int64_t)id < 0) id += (uint64_t)t->count;
	if (id < (uint64_t)t->count) {
		const char *row = (const char *)t->rows + (int64_t)id * a->bytes;
		int64_t n = a->bytes < FETCHED ? a->bytes : FETCHED;
		for (int64_t b = 0; b < n; b += LINE) FETCH(row + b);
		if (((uintptr_t)row & (LINE - 1)) + (uint64_t)n > (uint64_t)((n + LINE - 1) & -LINE))
			FETCH(row + n - 1);
		if (t->scales) FETCH(t->scales + id);
	}
	a->at += t->inner;
	if (--a->lookup == 0) {
		a->bag++;
		a->left--;
		ahead_enter(a);
	}
}

// half_to_float is exact.
static inline float half_to_float(uint16_t h) {
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, bits = (uint32_t)(h & 0x7fff) << 13;
	if (bits >= 0x7c00u << 13) {
		bits |= 0x7f800000; // infinite, or not a number
		if (bits & 0x7fffff) bits |= 0x400000;
	} else {
		float f;
		memcpy(&f, &bits, 4);
		f *= 0x1p112f;
		memcpy(&bits, &f, 4);
	}
	bits |= sign;
	float f;
	memcpy(&f, &bits, 4);
	return f;
}

static inline float element(enum bags_form form, const uint8_t *p, int j, int shift) {
	switch (form) {
	case BAGS_FP32: {
		float f;
		memcpy(&f, p + 4 * j, 4);
		return f;
	}
	case BAGS_FP16: {
		uint16_t h;
		memcpy(&h, p + 2 * j, 2);
		return half_to_float(h);
	}
	case BAGS_INT8: return (float)(int8_t)p[j];
	default: return (float)(int)((p[j] >> shift) & 15) - 8.0f;
	}
}

// bytes_of returns the bytes that n elements take; of BAGS_INT4 those of one half.
static inline int64_t bytes_of(enum bags_form form, int64_t n) {
	return form == BAGS_FP32 ? 4 * n : form == BAGS_FP16 ? 2 * n : n;
}

// few is as many elements as bag_of_few keeps in registers at a time.
enum { FEW = 32 };

typedef float few_vec __attribute__((vector_size(16)));
typedef int32_t few_mask __attribute__((vector_size(16)));

// add_few adds the rows of a bag at the elements [0, n), n <= FEW, with weights or for their maximum. It
// returns the index of the first bad lookup, or -1.
static inline __attribute__((always_inline)) int64_t add_few(const struct bags_table *t,
	const struct bag_span *s, const float *p, int64_t n, float *out, struct ahead *ahead) {
	few_vec sum[FEW / 4];
	float v[FEW] = {0};
	const float first = t->mode == BAGS_MAX ? s->empty : 0;
	for (int i = 0; i < FEW / 4; i++) sum[i] = (few_vec){first, first, first, first};
	int64_t at = s->at;
	for (int64_t l = 0; l < s->n; l++, at += t->inner) {
		uint64_t id = (uint64_t)id_at(t, at), count = (uint64_t)t->count;
		if ((int64_t)id < 0) id += count;
		if (__builtin_expect(id >= count, 0)) return l;
		if (ahead) ahead_next(ahead);
		const float *row = p + (int64_t)id * t->dim;
		if (n == FEW)
			memcpy(v, row, sizeof v);
		else
			memcpy(v, row, (size_t)n * sizeof *v);
		const float w = t->weights ? t->weights[at] : 1;
		for (int i = 0; i < FEW / 4; i++) {
			few_vec x;
			memcpy(&x, v + 4 * i, sizeof x);
			if (t->mode == BAGS_MAX) {
				const few_mask greater = x > sum[i];
				sum[i] = (few_vec)(((few_mask)x & greater) | ((few_mask)sum[i] & ~greater));
			} else {
				sum[i] += x * w;
			}
		}
	}
	if (t->mode == BAGS_MEAN && s->n > 0)
		for (int i = 0; i < FEW / 4; i++) sum[i] /= s->by;
	memcpy(out, sum, (size_t)n * sizeof *out);
	return -1;
}

// bag_of_few computes one output row of a table of floats, with weights or for the maximum. What takes
// time are the rows' way from memory, for which all instruction sets have vectors enough.
static int64_t bag_of_few(const struct bags_table *t, const struct bag_span *s, float *out,
	struct ahead *ahead) {
	const float *p = t->rows;
	for (int64_t left = t->dim; left > 0; left -= FEW, p += FEW, out += FEW) {
		const int64_t bad = left >= FEW ? add_few(t, s, p, FEW, out, ahead)
										: add_few(t, s, p, left, out, ahead);
		if (bad >= 0) return bad;
		ahead = NULL;
	}
	return -1;
}

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(f) JOIN(f, TARGET)

// Each instruction set has vectors of LANES floats, VEC, and loads 16 elements of a row as floats.
// bags_target.h is the rest.

#define TARGET portable
#define ATTRIBUTE
#define LANES 4
typedef float portable_vec __attribute__((vector_size(16)));
#define VEC portable_vec
static inline __attribute__((always_inline)) void load16_portable(
	VEC *v, enum bags_form form, const uint8_t *p, int shift) {
	if (form == BAGS_FP32) {
		memcpy(&v[0], p, 16);
		memcpy(&v[1], p + 16, 16);
		memcpy(&v[2], p + 32, 16);
		memcpy(&v[3], p + 48, 16);
		return;
	}
#define FOUR(i)                                                                                        \
	v[i] = (VEC){element(form, p, 4 * i, shift), element(form, p, 4 * i + 1, shift),                   \
		element(form, p, 4 * i + 2, shift), element(form, p, 4 * i + 3, shift)};
	FOUR(0) FOUR(1) FOUR(2) FOUR(3)
#undef FOUR
}
#define SPLAT(f) ((VEC){f, f, f, f})
#include "bags_target.h"

#if defined(__x86_64__)
#define TARGET avx2
#define ATTRIBUTE __attribute__((target("avx2,f16c")))
#define LANES 8
#define VEC __m256
static inline __attribute__((always_inline)) ATTRIBUTE void load16_avx2(
	VEC *v, enum bags_form form, const uint8_t *p, int shift) {
	switch (form) {
	case BAGS_FP32:
		v[0] = _mm256_loadu_ps((const float *)p);
		v[1] = _mm256_loadu_ps((const float *)p + 8);
		return;
	case BAGS_FP16:
		v[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
		v[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1));
		return;
	default: break;
	}
	__m128i b = _mm_loadu_si128((const __m128i *)p);
	if (form == BAGS_INT4) {
		b = _mm_and_si128(_mm_srli_epi16(b, shift), _mm_set1_epi8(15));
		b = _mm_sub_epi8(b, _mm_set1_epi8(8));
	}
	v[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b));
	v[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)));
}
#define SPLAT(f) _mm256_set1_ps(f)
#include "bags_target.h"

#define TARGET avx512
#define ATTRIBUTE __attribute__((target("avx512f,avx512bw,avx512vl")))
#define LANES 16
#define VEC __m512
static inline __attribute__((always_inline)) ATTRIBUTE void load16_avx512(
	VEC *v, enum bags_form form, const uint8_t *p, int shift) {
	switch (form) {
	case BAGS_FP32: v[0] = _mm512_loadu_ps(p); return;
	case BAGS_FP16: v[0] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); return;
	default: break;
	}
	__m128i b = _mm_loadu_si128((const __m128i *)p);
	if (form == BAGS_INT4) {
		b = _mm_and_si128(_mm_srli_epi16(b, shift), _mm_set1_epi8(15));
		b = _mm_sub_epi8(b, _mm_set1_epi8(8));
	}
	v[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
}
#define SPLAT(f) _mm512_set1_ps(f)
#include "bags_target.h"
#endif

#if defined(__aarch64__)
#define TARGET neon
#define ATTRIBUTE
#define LANES 4
#define VEC float32x4_t
static inline __attribute__((always_inline)) void load16_neon(
	VEC *v, enum bags_form form, const uint8_t *p, int shift) {
	switch (form) {
	case BAGS_FP32:
		v[0] = vld1q_f32((const float *)p);
		v[1] = vld1q_f32((const float *)p + 4);
		v[2] = vld1q_f32((const float *)p + 8);
		v[3] = vld1q_f32((const float *)p + 12);
		return;
	case BAGS_FP16:
#define FOUR(i) v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)p + 4 * i)));
		FOUR(0) FOUR(1) FOUR(2) FOUR(3)
#undef FOUR
		return;
	default: break;
	}
	int8x16_t b = vld1q_s8((const int8_t *)p);
	if (form == BAGS_INT4) {
		uint8x16_t u = vreinterpretq_u8_s8(b);
		u = shift ? vshrq_n_u8(u, 4) : vandq_u8(u, vdupq_n_u8(15));
		b = vsubq_s8(vreinterpretq_s8_u8(u), vdupq_n_s8(8));
	}
	int16x8_t low = vmovl_s8(vget_low_s8(b)), high = vmovl_s8(vget_high_s8(b));
	v[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
	v[1] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(low)));
	v[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
	v[3] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)));
}
#define SPLAT(f) vdupq_n_f32(f)
#include "bags_target.h"
#endif

#if defined(MUSTER_SVE)
#include "bags_sve.h"
#define TARGET sve
#define ATTRIBUTE SVE
#include "bags_target.h"
#endif

typedef int (*sum_function)(const struct bags_table *, int64_t, int64_t, int64_t, int64_t, int,
	struct bags_fault *);

struct target {
	const char *name;
	sum_function sum;
};

static struct target found[4];
static int targets;
static sum_function use = sum_portable;

__attribute__((constructor)) static void find_targets(void) {
#if defined(__x86_64__)
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512vl"))
		found[targets++] = (struct target){"avx512", sum_avx512};
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
		found[targets++] = (struct target){"avx2", sum_avx2};
#elif defined(__aarch64__)
#if defined(MUSTER_SVE)
	const int sve = (getauxval(AT_HWCAP) & HWCAP_SVE) != 0;
	const int wide = sve && lanes_sve() > 4; // than those of NEON
	if (wide) found[targets++] = (struct target){"sve", sum_sve};
#endif
	found[targets++] = (struct target){"neon", sum_neon};
#if defined(MUSTER_SVE)
	if (sve && !wide) found[targets++] = (struct target){"sve", sum_sve};
#endif
#endif
	found[targets++] = (struct target){"portable", sum_portable};
	use = found[0].sum;
}

int bags_targets(void) { return targets; }
const char *bags_target(int i) { return found[i].name; }
void bags_use(int i) { use = found[i].sum; }

int bags_sum(const struct bags_table *tables, int64_t bags, int64_t stride, int64_t from, int64_t to,
	int distance, struct bags_fault *fault) {
	return use(tables, bags, stride, from, to, distance, fault);
}

// cpu_ns is how long this thread has run. Waiting for memory counts, other programs do not.
static int64_t cpu_ns(void) {
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int bags_distance(const struct bags_table *table) {
	enum {
		MOST = 64 << 20, PAGE = 4096, // bytes
		LOOKUPS = 64, BAGS = 64, ROUNDS = 5,
	};
	static const int distances[] = {8, 16, 32, 64, 128};
	enum { DISTANCES = sizeof distances / sizeof *distances };
	const int64_t bytes = bags_row_bytes(table);
	const int64_t rows = table->count < MOST / bytes ? table->count : MOST / bytes;
	int64_t *ids = malloc(LOOKUPS * BAGS * sizeof *ids);
	float *out = malloc((size_t)table->dim * BAGS * sizeof *out);
	int best = BAGS_DISTANCE;
	if (!ids || !out) goto end;
	for (int64_t at = 0; at < rows * bytes; at += PAGE)
		(void)*((const volatile char *)table->rows + at);
	struct bags_table t = *table;
	t.ids = ids;
	t.id_size = 8;
	t.lookups = t.group = LOOKUPS;
	t.outer = t.inner = 1;
	t.out = out;
	int64_t took[DISTANCES], least = INT64_MAX;
	uint64_t random = 1;
	for (int round = 0; round < ROUNDS; round++)
		for (int d = 0; d < DISTANCES; d++) {
			for (int i = 0; i < LOOKUPS * BAGS; i++) { // rows that caches do not hold yet
				random = random * 6364136223846793005u + 1442695040888963407u;
				ids[i] = (int64_t)((random >> 32) * (uint64_t)rows >> 32);
			}
			struct bags_fault fault;
			const int64_t begin = cpu_ns();
			bags_sum(&t, BAGS, t.dim, 0, BAGS, distances[d], &fault);
			const int64_t ns = cpu_ns() - begin;
			if (round == 0 || ns < took[d]) took[d] = ns;
			if (ns < least) least = ns;
		}
	// The nearest of those that are as good as the best.
	for (int d = DISTANCES - 1; d >= 0; d--)
		if (took[d] <= least + least / 32) best = distances[d];
end:
	free(ids);
	free(out);
	return best;
}
