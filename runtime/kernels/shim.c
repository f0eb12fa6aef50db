// The operator EmbeddingBags of the domain muster: sums of rows of several tables, side by side.
#include "shim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bags.h"
#include "ort.h"

static const ort_api *api;
static ort_domain *domain;

#define FUNCTION(name, at, result, parameters)                                                         \
	typedef result(*name##_type) parameters;                                                           \
	enum { name##_at = at };
ORT_FUNCTIONS(FUNCTION)
#define CALL(name) ((name##_type)(uintptr_t)api->function[name##_at])
#define TRY(call)                                                                                      \
	do {                                                                                               \
		ort_status *status = (call);                                                                   \
		if (status) return status;                                                                     \
	} while (0)

static ort_status *fault(const char *text) { return CALL(CreateStatus)(ORT_INVALID_ARGUMENT, text); }

enum { MOST_DIMENSIONS = 16 };

// A tensor is an input as it is when the operator runs.
struct tensor {
	const void *data;
	int type;
	size_t rank;
	int64_t shape[MOST_DIMENSIONS];
};

static ort_status *read_tensor(const ort_value *value, struct tensor *t) {
	ort_shape *shape;
	TRY(CALL(GetTensorTypeAndShape)(value, &shape));
	ort_status *status = CALL(GetTensorElementType)(shape, &t->type);
	if (!status) status = CALL(GetDimensionsCount)(shape, &t->rank);
	if (!status && t->rank > MOST_DIMENSIONS) status = fault("a tensor of more than 16 dimensions");
	if (!status) status = CALL(GetDimensions)(shape, t->shape, t->rank);
	CALL(ReleaseTensorTypeAndShapeInfo)(shape);
	void *data = NULL;
	if (!status) status = CALL(GetTensorMutableData)((ort_value *)value, &data);
	t->data = data;
	return status;
}

// A kernel is a node of a graph.
struct kernel {
	int64_t threads, ids; // ids is how many inputs are ids, offsets or weights; they are the first
	int distance;         // how many rows ahead memory is fetched
	size_t count;         // of tables
	struct bags_table *tables; // what is the same in all runs
	int64_t *fields;           // SHIM_FIELDS of each table
};

static void destroy(void *op) {
	struct kernel *k = op;
	free(k->tables);
	free(k->fields);
	free(k);
}

static ort_status *constant(const ort_info *info, int64_t input, struct tensor *t) {
	int is_constant = 0;
	const ort_value *value = NULL;
	TRY(CALL(KernelInfoGetConstantInput_tensor)(info, (size_t)input, &is_constant, &value));
	if (!is_constant || !value) return fault("a table is no constant");
	return read_tensor(value, t);
}

static ort_status *read_table(const ort_info *info, const int64_t *f, struct bags_table *table) {
	static const int types[] = {ORT_FLOAT, ORT_FLOAT16, ORT_INT8, ORT_UINT8};
	struct tensor t;
	if (f[SHIM_FORM] < 0 || f[SHIM_FORM] > BAGS_INT4) return fault("a table of unknown form");
	TRY(constant(info, f[SHIM_TABLE], &t));
	if (t.rank != 2 || t.type != types[f[SHIM_FORM]])
		return fault("a table has another type or shape than expected");
	table->rows = t.data;
	table->count = t.shape[0];
	table->form = (enum bags_form)f[SHIM_FORM];
	table->dim = t.shape[1] * (table->form == BAGS_INT4 ? 2 : 1);
	if ((f[SHIM_SCALES] >= 0) != (table->form >= BAGS_INT8)) return fault("a table without scales");
	if (f[SHIM_SCALES] < 0) return NULL;
	TRY(constant(info, f[SHIM_SCALES], &t));
	if (t.type != ORT_FLOAT || t.rank != 2 || t.shape[0] != table->count || t.shape[1] != 1)
		return fault("a table's scales are not one float for each row");
	table->scales = t.data;
	return NULL;
}

// MEASURED is how many bytes a table must have for the distance to matter: caches hold smaller ones.
enum { MEASURED = 16 << 20 };

// distance_for returns how many rows ahead memory is to be fetched for tables. It is measured once
// for each length of rows, as it depends on that and on the machine.
static int distance_for(const struct bags_table *tables, size_t count) {
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static struct {
		int64_t row;
		int distance;
	} known[16];
	static size_t n;
	const struct bags_table *t = tables; // the largest
	for (size_t i = 1; i < count; i++)
		if (tables[i].count * bags_row_bytes(&tables[i]) > t->count * bags_row_bytes(t)) t = &tables[i];
	const int64_t row = bags_row_bytes(t);
	if (t->count * row < MEASURED) return BAGS_DISTANCE;
	pthread_mutex_lock(&mutex);
	size_t i = 0;
	while (i < n && known[i].row != row) i++;
	const int distance = i < n ? known[i].distance : bags_distance(t);
	if (i == n && n < sizeof known / sizeof *known) {
		known[n].row = row;
		known[n++].distance = distance;
	}
	pthread_mutex_unlock(&mutex);
	return distance;
}

static ort_status *create(const ort_op *op, const ort_api *a, const ort_info *info, void **out) {
	(void)op, (void)a;
	size_t n = 0;
	TRY(CALL(KernelInfoGetAttributeArray_int64)(info, "bags", NULL, &n));
	if (n == 0 || n % SHIM_FIELDS != 0) return fault("attribute bags has a wrong length");
	struct kernel *k = calloc(1, sizeof *k);
	if (!k) return fault("out of memory");
	k->count = n / SHIM_FIELDS;
	k->fields = calloc(n, sizeof *k->fields);
	k->tables = calloc(k->count, sizeof *k->tables);
	ort_status *status = k->fields && k->tables ? NULL : fault("out of memory");
	if (!status) status = CALL(KernelInfoGetAttributeArray_int64)(info, "bags", k->fields, &n);
	if (!status) status = CALL(KernelInfoGetAttribute_int64)(info, "threads", &k->threads);
	if (!status) status = CALL(KernelInfoGetAttribute_int64)(info, "ids", &k->ids);
	for (size_t i = 0; i < k->count && !status; i++) {
		const int64_t *f = k->fields + i * SHIM_FIELDS;
		if (f[SHIM_IDS] < 0 || f[SHIM_IDS] >= k->ids || f[SHIM_OFFSETS] >= k->ids ||
			f[SHIM_WEIGHTS] >= k->ids)
			status = fault("ids are not among the inputs");
		else if ((f[SHIM_MODE] == BAGS_MAX || f[SHIM_WEIGHTS] >= 0) && f[SHIM_FORM] != BAGS_FP32)
			status = fault("weights or a maximum of a table that is not of floats");
		else if (f[SHIM_WEIGHTS] >= 0 && f[SHIM_SPLIT] >= 0)
			status = fault("weights of a part of the ids");
		else
			status = read_table(info, f, &k->tables[i]);
	}
	if (status) {
		destroy(k);
		return status;
	}
	k->distance = distance_for(k->tables, k->count);
	*out = k;
	return NULL;
}

// product returns the product of the sizes of the dimensions [from, to).
static int64_t product(const struct tensor *t, size_t from, size_t to) {
	int64_t n = 1;
	for (size_t i = from; i < to; i++) n *= t->shape[i];
	return n;
}

// place_ragged is place of bags that offsets say.
static ort_status *place_ragged(struct bags_table *table, const int64_t *f, const struct tensor *ids,
	const struct tensor *offsets, int64_t *bags, int64_t *shape, size_t *rank) {
	if (offsets->type != ORT_INT64 && offsets->type != ORT_INT32)
		return fault("offsets are neither INT64 nor INT32");
	if (offsets->rank != 1) return fault("offsets have more dimensions than one");
	table->offsets = offsets->data;
	table->offset_size = offsets->type == ORT_INT64 ? 8 : 4;
	table->offset_count = offsets->shape[0];
	table->id_count = product(ids, 0, ids->rank);
	table->ids = ids->data;
	table->open = f[SHIM_OPEN] != 0;
	table->zero = f[SHIM_ZERO] != 0;
	table->inner = table->outer = 1;
	*bags = table->offset_count - (f[SHIM_LAST] != 0);
	if (*bags < 0) *bags = 0;
	shape[0] = *bags;
	*rank = 1;
	return NULL;
}

// place says where the table's ids lie among the inputs, and returns the number of its bags and the
// shape of its output, without the elements.
static ort_status *place(struct bags_table *table, const int64_t *f, const struct tensor *inputs,
	int64_t *bags, int64_t *shape, size_t *rank) {
	const struct tensor *ids = &inputs[f[SHIM_IDS]];
	if (ids->type != ORT_INT64 && ids->type != ORT_INT32)
		return fault("ids are neither INT64 nor INT32");
	table->id_size = ids->type == ORT_INT64 ? 8 : 4;
	table->mode = (enum bags_mode)f[SHIM_MODE];
	if (f[SHIM_WEIGHTS] >= 0) {
		const struct tensor *weights = &inputs[f[SHIM_WEIGHTS]];
		if (weights->type != ORT_FLOAT) return fault("weights are not FLOAT");
		if (product(weights, 0, weights->rank) != product(ids, 0, ids->rank))
			return fault("there is not a weight for each id");
		table->weights = weights->data;
	}
	if (f[SHIM_OFFSETS] >= 0)
		return place_ragged(table, f, ids, &inputs[f[SHIM_OFFSETS]], bags, shape, rank);
	const int whole = f[SHIM_SPLIT] < 0, single = f[SHIM_REDUCE] < 0;
	const size_t split = whole ? 0 : (size_t)f[SHIM_SPLIT];
	const size_t reduce = single ? ids->rank : (size_t)f[SHIM_REDUCE];
	if (split > reduce || (!whole && split >= ids->rank) || (!single && reduce >= ids->rank))
		return fault("ids have fewer dimensions than expected");
	struct tensor part = *ids; // its shape is that of this table's ids
	if (!whole) {
		int64_t size = ids->shape[split];
		if (f[SHIM_START] < 0 || f[SHIM_SIZE] < 0 || f[SHIM_START] > size - f[SHIM_SIZE] ||
			(f[SHIM_DROP] && (f[SHIM_SIZE] != 1 || split == reduce)))
			return fault("ids have another shape than expected");
		part.shape[split] = f[SHIM_SIZE];
	}
	const int64_t after = product(ids, split + !whole, ids->rank); // ids of one index of the split
	table->lookups = single ? 1 : part.shape[reduce];
	table->inner = single ? 1 : product(ids, reduce + 1, ids->rank);
	if (!whole && split == reduce) {
		table->outer = 1;
		table->group = ids->shape[split] * after;
	} else {
		table->outer = product(&part, split, reduce);
		table->group = whole ? 0 : ids->shape[split] * after;
	}
	const size_t offset = whole ? 0 : (size_t)(f[SHIM_START] * after * table->id_size);
	table->ids = (const char *)ids->data + offset;
	*bags = product(&part, 0, reduce) * table->inner;
	*rank = 0;
	for (size_t i = 0; i < ids->rank; i++) {
		if (!whole && i == split && f[SHIM_DROP]) continue;
		if (i != reduce || single)
			shape[(*rank)++] = part.shape[i];
		else if (f[SHIM_KEEP])
			shape[(*rank)++] = 1;
	}
	return NULL;
}

// A job is what the threads of a run share.
struct job {
	const struct bags_table *tables;
	int64_t bags, stride, total, tasks;
	int distance;
	atomic_int failed;
	struct bags_fault fault;
};

static void work(void *data, size_t task) {
	struct job *j = data;
	int64_t from = j->total * (int64_t)task / j->tasks, to = j->total * (int64_t)(task + 1) / j->tasks;
	struct bags_fault f;
	if (bags_sum(j->tables, j->bags, j->stride, from, to, j->distance, &f) != 0 &&
		atomic_exchange(&j->failed, 1) == 0)
		j->fault = f;
}

// perThread is how many bytes of rows are worth a thread of their own. Waking one takes some 10 us, in
// which one core reads 150 KB.
enum { PER_THREAD = 256 << 10, TASKS_PER_THREAD = 4 };

static ort_status *run(const struct kernel *k, ort_context *context, struct tensor *ids,
	struct bags_table *tables) {
	for (int64_t i = 0; i < k->ids; i++) {
		const ort_value *value;
		TRY(CALL(KernelContext_GetInput)(context, (size_t)i, &value));
		TRY(read_tensor(value, &ids[i]));
	}
	memcpy(tables, k->tables, k->count * sizeof *tables);
	int64_t bags = 0, width = 0, bytes = 0, shape[MOST_DIMENSIONS + 1], other[MOST_DIMENSIONS + 1];
	size_t rank = 0;
	for (size_t i = 0; i < k->count; i++) {
		const int64_t *f = k->fields + i * SHIM_FIELDS;
		int64_t n = 0;
		size_t r = 0;
		TRY(place(&tables[i], f, ids, &n, i == 0 ? shape : other, &r));
		if (i == 0) {
			bags = n;
			rank = r;
		} else if (r != rank || memcmp(shape, other, rank * sizeof *shape) != 0) {
			return fault("the ids of two tables have different shapes");
		}
		width += tables[i].dim;
		bytes += (tables[i].offsets ? tables[i].id_count : bags * tables[i].lookups) * tables[i].dim * 4;
	}
	shape[rank] = width;
	ort_value *output;
	TRY(CALL(KernelContext_GetOutput)(context, 0, shape, rank + 1, &output));
	void *out;
	TRY(CALL(GetTensorMutableData)(output, &out));
	for (size_t i = 0, at = 0; i < k->count; i++) {
		tables[i].out = (float *)out + at;
		at += (size_t)tables[i].dim;
	}
	struct job j = {.tables = tables, .bags = bags, .stride = width,
		.total = bags * (int64_t)k->count, .distance = k->distance};
	int64_t threads = 1 + bytes / PER_THREAD;
	if (threads > k->threads) threads = k->threads;
	j.tasks = threads > 1 ? threads * TASKS_PER_THREAD : 1;
	if (j.total == 0) return NULL;
	if (j.tasks == 1)
		work(&j, 0);
	else
		TRY(CALL(KernelContext_ParallelFor)(context, work, (size_t)j.tasks, 0, &j));
	if (atomic_load(&j.failed)) {
		char text[160]; // as of the standard operator Gather
		snprintf(text, sizeof text,
			"indices element out of data bounds, idx=%lld must be within the inclusive range [%lld,%lld]",
			(long long)j.fault.id, (long long)-j.fault.count, (long long)j.fault.count - 1);
		return fault(text);
	}
	return NULL;
}

static ort_status *compute(void *op, ort_context *context) {
	struct kernel *k = op;
	struct tensor few_ids[4], *ids = few_ids;
	struct bags_table few_tables[48], *tables = few_tables;
	if (k->ids > 4) ids = malloc((size_t)k->ids * sizeof *ids);
	if (k->count > 48) tables = malloc(k->count * sizeof *tables);
	ort_status *status = ids && tables ? run(k, context, ids, tables) : fault("out of memory");
	if (ids != few_ids) free(ids);
	if (tables != few_tables) free(tables);
	return status;
}

static const char *name(const ort_op *op) { return (void)op, "EmbeddingBags"; }
static const char *provider(const ort_op *op) { return (void)op, "CPUExecutionProvider"; }
static size_t one(const ort_op *op) { return (void)op, 1; }
static int any_type(const ort_op *op, size_t i) { return (void)op, (void)i, 0; }
static int float_type(const ort_op *op, size_t i) { return (void)op, (void)i, ORT_FLOAT; }
static int variadic(const ort_op *op, size_t i) { return (void)op, (void)i, ORT_VARIADIC; }
static int required(const ort_op *op, size_t i) { return (void)op, (void)i, ORT_REQUIRED; }
static int default_memory(const ort_op *op, size_t i) { return (void)op, (void)i, 0; }
static int two(const ort_op *op) { return (void)op, 2; }
static int no(const ort_op *op) { return (void)op, 0; }
static int version_one(const ort_op *op) { return (void)op, 1; }

static const ort_op operator= {
	.version = ORT_VERSION,
	.GetName = name,
	.GetExecutionProviderType = provider,
	.GetInputType = any_type,
	.GetInputTypeCount = one,
	.GetOutputType = float_type,
	.GetOutputTypeCount = one,
	.KernelDestroy = destroy,
	.GetInputCharacteristic = variadic,
	.GetOutputCharacteristic = required,
	.GetInputMemoryType = default_memory,
	.GetVariadicInputMinArity = two,
	.GetVariadicInputHomogeneity = no,
	.GetVariadicOutputMinArity = version_one,
	.GetVariadicOutputHomogeneity = no,
	.CreateKernelV2 = create,
	.KernelComputeV2 = compute,
	.GetStartVersion = version_one,
	.GetEndVersion = version_one,
};

// text returns the status's error as a string of its own, and releases the status.
static char *text(ort_status *status) {
	char *copy = strdup(CALL(GetErrorMessage)(status));
	CALL(ReleaseStatus)(status);
	return copy;
}

const char *shim_open(const char *path) {
	void *library = dlopen(path, RTLD_LAZY); // loaded already: this only finds it
	if (!library) return dlerror();
	const ort_api_base *(*base)(void) =
		(const ort_api_base *(*)(void))(uintptr_t)dlsym(library, "OrtGetApiBase");
	if (!base) return dlerror();
	api = base()->get_api(ORT_VERSION);
	if (!api) return "the library lacks the interface's version";
	ort_status *status = CALL(CreateCustomOpDomain)("muster", &domain);
	if (!status) status = CALL(CustomOpDomain_Add)(domain, &operator);
	return status ? text(status) : NULL;
}

char *shim_register(void *options) {
	ort_status *status = CALL(AddCustomOpDomain)(options, domain);
	return status ? text(status) : NULL;
}
