// Does not compile when ep/kernels/tvm_abi.h and the headers of apache-tvm-ffi disagree. Never
// linked or run.
#include <tvm/ffi/c_api.h>

#include <cstddef>
#include <type_traits>

#include "../ep/kernels/tvm_abi.h"

#define SAME(own, field, theirs, their_field)                                       \
  static_assert(offsetof(pitc::tvm::own, field) == offsetof(theirs, their_field) && \
                    sizeof(pitc::tvm::own) == sizeof(theirs),                       \
                #own "." #field)
SAME(Tensor, data, DLTensor, data);
SAME(Tensor, device_type, DLTensor, device);
SAME(Tensor, ndim, DLTensor, ndim);
SAME(Tensor, code, DLTensor, dtype);
SAME(Tensor, shape, DLTensor, shape);
SAME(Tensor, strides, DLTensor, strides);
SAME(Tensor, byte_offset, DLTensor, byte_offset);
SAME(Any, type_index, TVMFFIAny, type_index);
SAME(Any, v_int, TVMFFIAny, v_int64);
SAME(Any, v_float, TVMFFIAny, v_float64);
SAME(Any, v_ptr, TVMFFIAny, v_ptr);
static_assert(offsetof(DLDevice, device_id) == 4 && offsetof(DLDataType, bits) == 1 &&
              offsetof(DLDataType, lanes) == 2);
static_assert(pitc::tvm::kNone == kTVMFFINone && pitc::tvm::kInt == kTVMFFIInt);
static_assert(pitc::tvm::kFloat == kTVMFFIFloat && pitc::tvm::kTensorPtr == kTVMFFIDLTensorPtr);
static_assert(pitc::tvm::kCpu == kDLCPU && pitc::tvm::kCuda == kDLCUDA &&
              pitc::tvm::kIntCode == kDLInt && pitc::tvm::kUIntCode == kDLUInt &&
              pitc::tvm::kFloatCode == kDLFloat);
static_assert(
    std::is_same_v<TVMFFISafeCallType, int (*)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*)>);
