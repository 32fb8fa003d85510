/* A library of one operator, acme:Double, y = 2 x of float32, in terms of ONNX Runtime's C interface: its structs of
   function pointers, as far as they are needed, by their published places. */
#include <stddef.h>
#include <stdint.h>

typedef struct Status Status;
typedef struct Value Value;
typedef struct Context Context;
typedef struct Info Info;
typedef struct Options Options;
typedef struct Domain Domain;
typedef void (*Function)(void);
typedef Function Api; /* a table of them */

enum { kFloat = 1, kRequired = 0 };
enum { /* places in OrtApi */
  kCreateCustomOpDomain = 26,
  kCustomOpDomainAdd = 27,
  kAddCustomOpDomain = 28,
  kGetTensorMutableData = 51,
  kGetDimensionsCount = 61,
  kGetDimensions = 62,
  kGetTensorTypeAndShape = 65,
  kGetInput = 90,
  kGetOutput = 91,
  kReleaseInfo = 99,
};

static const Api* api;

typedef struct Op {
  uint32_t version;
  void* (*create)(const struct Op*, const Api*, const Info*);
  const char* (*name)(const struct Op*);
  const char* (*provider)(const struct Op*);
  int (*input_type)(const struct Op*, size_t);
  size_t (*input_count)(const struct Op*);
  int (*output_type)(const struct Op*, size_t);
  size_t (*output_count)(const struct Op*);
  void (*compute)(void*, Context*);
  void (*destroy)(void*);
  int (*input_kind)(const struct Op*, size_t);
  int (*output_kind)(const struct Op*, size_t);
} Op;

static void* Create(const Op* op, const Api* given, const Info* info) {
  (void)info;
  api = given;
  return (void*)op;
}
static const char* Name(const Op* op) { return (void)op, "Double"; }
static const char* Provider(const Op* op) { return (void)op, NULL; }
static size_t One(const Op* op) { return (void)op, 1; }
static int Type(const Op* op, size_t i) { return (void)op, (void)i, kFloat; }
static int Kind(const Op* op, size_t i) { return (void)op, (void)i, kRequired; }
static void Destroy(void* kernel) { (void)kernel; }

static void Compute(void* kernel, Context* context) {
  const Value* in;
  Value* out;
  void* info;
  int64_t dims[8];
  size_t rank, count = 1;
  float *x, *y;
  (void)kernel;
  ((Status * (*)(const Context*, size_t, const Value**)) api[kGetInput])(context, 0, &in);
  ((Status * (*)(const Value*, void**)) api[kGetTensorTypeAndShape])(in, &info);
  ((Status * (*)(const void*, size_t*)) api[kGetDimensionsCount])(info, &rank);
  ((Status * (*)(const void*, int64_t*, size_t)) api[kGetDimensions])(info, dims, rank);
  ((void (*)(void*))api[kReleaseInfo])(info);
  for (size_t d = 0; d < rank; ++d) count *= (size_t)dims[d];
  ((Status * (*)(Context*, size_t, const int64_t*, size_t, Value**)) api[kGetOutput])(context, 0, dims, rank, &out);
  ((Status * (*)(Value*, void**)) api[kGetTensorMutableData])((Value*)in, (void**)&x);
  ((Status * (*)(Value*, void**)) api[kGetTensorMutableData])(out, (void**)&y);
  for (size_t i = 0; i < count; ++i) y[i] = 2 * x[i];
}

static const Op kOp = {10, Create, Name, Provider, Type, One, Type, One, Compute, Destroy, Kind, Kind};

typedef struct {
  const Api* (*get)(uint32_t);
  const char* (*version)(void);
} Base;

Status* RegisterCustomOps(Options* options, const Base* base) {
  Domain* domain;
  api = base->get(23);
  ((Status * (*)(const char*, Domain**)) api[kCreateCustomOpDomain])("acme", &domain);
  ((Status * (*)(Domain*, const Op*)) api[kCustomOpDomainAdd])(domain, &kOp);
  return ((Status * (*)(Options*, Domain*)) api[kAddCustomOpDomain])(options, domain);
}
