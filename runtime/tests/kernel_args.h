// What the reference kernels have in common: strict reading of packed arguments, and their symbols.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "kernels/tvm_abi.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace pitc::test {

using tvm::Any;
using tvm::Tensor;

inline thread_local char error_text[200];

inline int Refuse(const char* what, int argument) {
  snprintf(error_text, sizeof error_text, "argument %d: %s", argument, what);
  return -1;
}

// Arguments in order; after the first mismatch everything is a mismatch.
class Args {
 public:
  Args(const Any* args, int32_t count) : args_(args), count_(count) {}

  const Tensor* Array(uint8_t code, int bits, int ndim) {
    static const Tensor nothing{};
    const Any* arg = Next(tvm::kTensorPtr);
    if (!arg) return &nothing;
    auto* t = static_cast<const Tensor*>(arg->v_ptr);
    bool good = t->data && t->device_type == tvm::kCpu && t->code == code && t->bits == bits &&
                t->lanes == 1;
    good = good && t->ndim == ndim && !t->strides && t->byte_offset == 0;
    if (!good) Mismatch("type or rank");
    return good ? t : &nothing;
  }
  const Tensor* Floats(int ndim) { return Array(tvm::kFloatCode, 32, ndim); }
  const Tensor* Int32s(int ndim) { return Array(tvm::kIntCode, 32, ndim); }
  const Tensor* Int64s(int ndim) { return Array(tvm::kIntCode, 64, ndim); }
  int64_t Int() {
    const Any* arg = Next(tvm::kInt);
    if (arg && arg->v_int != static_cast<int32_t>(arg->v_int)) Mismatch("not an int32");
    return arg ? arg->v_int : 0;
  }
  double Float() {
    const Any* arg = Next(tvm::kFloat);
    return arg ? arg->v_float : 0;
  }
  void Demand(bool good, const char* what) {
    if (!good) Mismatch(what);
  }
  bool Good() {
    if (at_ != count_) Mismatch("wrong count");
    return good_;
  }

 private:
  const Any* Next(int32_t type) {
    if (!good_) return nullptr;
    if (at_ >= count_ || args_[at_].type_index != type) {
      Mismatch("missing, or of another kind");
      return nullptr;
    }
    return &args_[at_++];
  }
  void Mismatch(const char* what) {
    if (good_) Refuse(what, at_);
    good_ = false;
  }

  const Any* args_;
  int32_t count_, at_ = 0;
  bool good_ = true;
};

template <class T>
T* Data(const Tensor* t) {
  return static_cast<T*>(t->data);
}

inline bool Below(const int32_t* v, int64_t begin, int64_t end, int64_t limit) {
  return std::all_of(v + begin, v + end, [limit](int32_t x) { return x >= 0 && x < limit; });
}

enum class Activation { none, relu, gelu, fails, level };

inline double Activate(Activation activation, double x) {
  if (activation == Activation::relu) return x < 0 ? 0 : x;  // NaN stays
  if (activation == Activation::gelu) return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
  return x;
}

}  // namespace pitc::test

#define KERNEL_OF(symbol, function, ...)                                   \
  EXPORT int __tvm_ffi_##symbol(void*, const Any* args, int32_t n, Any*) { \
    return function(args, n, __VA_ARGS__);                                 \
  }
// For the lower CPU level of this architecture, and for the higher one.
#if defined(__aarch64__)
#define KERNEL_AT_3(symbol, ...) KERNEL_OF(symbol##_neon, __VA_ARGS__)
#define KERNEL_AT_4(symbol, ...)
#else
#define KERNEL_AT_3(symbol, ...) KERNEL_OF(symbol##_v3, __VA_ARGS__)
#define KERNEL_AT_4(symbol, ...) KERNEL_OF(symbol##_v4, __VA_ARGS__)
#endif
#define KERNEL_AT(symbol, level, ...) KERNEL_AT_##level(symbol, __VA_ARGS__)
#define KERNEL(symbol, ...)        \
  KERNEL_AT_3(symbol, __VA_ARGS__) \
  KERNEL_AT_4(symbol, __VA_ARGS__)
