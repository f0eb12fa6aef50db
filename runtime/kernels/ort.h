// The part of ONNX Runtime's C interface that shim.c needs. The interface only ever grows at its end,
// so that positions in it are fixed. TestInterface compares what is here with the whole header,
// which comes with the Go binding.
#ifndef MUSTER_ORT_H
#define MUSTER_ORT_H

#include <stddef.h>
#include <stdint.h>

enum { ORT_VERSION = 24 }; // of the interface, that of the Go binding

typedef struct ort_status ort_status;
typedef struct ort_value ort_value;
typedef struct ort_info ort_info; // OrtKernelInfo
typedef struct ort_context ort_context; // OrtKernelContext
typedef struct ort_shape ort_shape; // OrtTensorTypeAndShapeInfo
typedef struct ort_domain ort_domain; // OrtCustomOpDomain
typedef struct ort_options ort_options; // OrtSessionOptions

typedef struct ort_api {
	void *function[400];
} ort_api;

typedef struct ort_api_base {
	const ort_api *(*get_api)(uint32_t version);
	const char *(*get_version)(void);
} ort_api_base;

// ORT_FUNCTIONS lists the functions: name, position in OrtApi, parameters. They return a status, NULL
// for success, if not said otherwise.
#define ORT_FUNCTIONS(F)                                                                               \
	F(GetErrorMessage, 2, const char *, (const ort_status *))                                          \
	F(CreateStatus, 0, ort_status *, (int code, const char *text))                                     \
	F(CreateCustomOpDomain, 26, ort_status *, (const char *name, ort_domain **))                       \
	F(CustomOpDomain_Add, 27, ort_status *, (ort_domain *, const struct ort_op *))                     \
	F(AddCustomOpDomain, 28, ort_status *, (ort_options *, ort_domain *))                              \
	F(GetTensorMutableData, 51, ort_status *, (ort_value *, void **))                                  \
	F(GetTensorElementType, 60, ort_status *, (const ort_shape *, int *))                              \
	F(GetDimensionsCount, 61, ort_status *, (const ort_shape *, size_t *))                             \
	F(GetDimensions, 62, ort_status *, (const ort_shape *, int64_t *, size_t))                         \
	F(GetTensorTypeAndShape, 65, ort_status *, (const ort_value *, ort_shape **))                      \
	F(KernelInfoGetAttribute_int64, 86, ort_status *, (const ort_info *, const char *, int64_t *))     \
	F(KernelContext_GetInput, 90, ort_status *, (const ort_context *, size_t, const ort_value **))     \
	F(KernelContext_GetOutput, 91, ort_status *,                                                       \
		(ort_context *, size_t, const int64_t *, size_t, ort_value **))                                \
	F(ReleaseStatus, 93, void, (ort_status *))                                                         \
	F(ReleaseTensorTypeAndShapeInfo, 99, void, (ort_shape *))                                          \
	F(KernelInfoGetAttributeArray_int64, 163, ort_status *,                                            \
		(const ort_info *, const char *, int64_t *, size_t *))                                         \
	F(KernelInfoGetConstantInput_tensor, 249, ort_status *,                                            \
		(const ort_info *, size_t, int *, const ort_value **))                                         \
	F(KernelContext_ParallelFor, 274, ort_status *,                                                    \
		(const ort_context *, void (*)(void *, size_t), size_t, size_t, void *))

enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2 };
enum { ORT_FLOAT = 1, ORT_UINT8 = 2, ORT_INT8 = 3, ORT_INT32 = 6, ORT_INT64 = 7, ORT_FLOAT16 = 10 };
enum { ORT_REQUIRED = 0, ORT_VARIADIC = 2 };

// An ort_op is an OrtCustomOp.
typedef struct ort_op {
	uint32_t version;
	void *CreateKernel;
	const char *(*GetName)(const struct ort_op *);
	const char *(*GetExecutionProviderType)(const struct ort_op *);
	int (*GetInputType)(const struct ort_op *, size_t);
	size_t (*GetInputTypeCount)(const struct ort_op *);
	int (*GetOutputType)(const struct ort_op *, size_t);
	size_t (*GetOutputTypeCount)(const struct ort_op *);
	void *KernelCompute;
	void (*KernelDestroy)(void *kernel);
	int (*GetInputCharacteristic)(const struct ort_op *, size_t);
	int (*GetOutputCharacteristic)(const struct ort_op *, size_t);
	int (*GetInputMemoryType)(const struct ort_op *, size_t);
	int (*GetVariadicInputMinArity)(const struct ort_op *);
	int (*GetVariadicInputHomogeneity)(const struct ort_op *);
	int (*GetVariadicOutputMinArity)(const struct ort_op *);
	int (*GetVariadicOutputHomogeneity)(const struct ort_op *);
	ort_status *(*CreateKernelV2)(const struct ort_op *, const ort_api *, const ort_info *, void **);
	ort_status *(*KernelComputeV2)(void *kernel, ort_context *);
	void *InferOutputShapeFn;
	int (*GetStartVersion)(const struct ort_op *);
	int (*GetEndVersion)(const struct ort_op *);
	void *GetMayInplace, *ReleaseMayInplace, *GetAliasMap, *ReleaseAliasMap;
} ort_op;

#endif
