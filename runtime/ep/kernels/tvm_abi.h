// The C ABI of functions that TVM generates: this project's own declaration, checked against the
// headers of apache-tvm-ffi by abi/tvm_check.cc.
#pragma once

#include <cstdint>

namespace pitc::tvm {

struct Tensor {  // DLTensor; null strides mean compact, row-major
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct Any {  // TVMFFIAny
  int32_t type_index;
  uint32_t zero_padding;
  union {
    int64_t v_int;
    double v_float;
    void* v_ptr;
  };
};

constexpr int32_t kNone = 0, kInt = 1, kFloat = 3, kTensorPtr = 7;  // Any::type_index
constexpr int32_t kCpu = 1, kCuda = 2;                              // Tensor::device_type
constexpr uint8_t kIntCode = 0, kUIntCode = 1, kFloatCode = 2;      // Tensor::code

// Exported as `__tvm_ffi_<symbol>`; returns 0, or -1 when an argument is refused.
using Function = int (*)(void* self, const Any* args, int32_t count, Any* result);

// What a library may ask of its host, through pointers that the host fills in.
using AllocWorkspace = void* (*)(int device_type, int device_id, uint64_t bytes, int code,
                                 int bits);
using FreeWorkspace = int (*)(int device_type, int device_id, void* memory);
struct ParallelEnv {
  void* barrier;
  int32_t num_task;
};
using ParallelTask = int (*)(int task, ParallelEnv* env, void* data);
using ParallelLaunch = int (*)(ParallelTask task, void* data, int num_task);

}  // namespace pitc::tvm
