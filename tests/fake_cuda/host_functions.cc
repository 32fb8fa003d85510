// A kernel library for CUDA as the compiler builds it, by hand: host functions
// in TVM's convention, the tables of kernels and images, and the pointers that
// whoever loads it fills in. The images are the files PITC_IMAGE_80 and _90,
// and, as PTX, _75.
#include <cstdint>
#include <cstdio>

#include "../../runtime/ep/kernels/tvm_abi.h"

#define API extern "C" __attribute__((visibility("default")))

using pitc::tvm::Any;
using pitc::tvm::Tensor;

API const char pitc_kernel_identity[] = "2/reference";

namespace {
thread_local char error_text[200];
constexpr int32_t kOpaque = 4;  // Any::type_index of a plain pointer
}  // namespace

API const char* pitc_kernel_last_error() { return error_text; }

API int (*__TVMFFIEnvModLookupFromImports)(void*, const char*, void**) = nullptr;
API int (*__TVMFFIFunctionCall)(void*, const Any*, int32_t, Any*) = nullptr;
API int (*__TVMFFIHandleInitOnce)(void**, int (*)(void**)) = nullptr;

namespace {

// A call site: it looks its kernel up once, for all devices.
template <const char* const& kName>
int Launch(const Any* args, int count) {
  static void* handle = nullptr;
  const auto find = [](void** found) {
    return __TVMFFIEnvModLookupFromImports(nullptr, kName, found);
  };
  if (const int code = __TVMFFIHandleInitOnce(&handle, find)) return code;
  Any result{};
  return __TVMFFIFunctionCall(handle, args, count, &result);
}

Any Int(int64_t value) {
  Any any{};
  any.type_index = pitc::tvm::kInt;
  any.v_int = value;
  return any;
}

Any Pointer(const Tensor* tensor) {
  Any any{};
  any.type_index = kOpaque;
  any.v_ptr = tensor->data;
  return any;
}

int Refuse(const char* what) {
  snprintf(error_text, sizeof error_text, "ValueError: %s", what);
  return -1;
}

const Tensor* TensorOf(const Any& any, int ndim, int bits) {
  const auto* t = static_cast<const Tensor*>(any.v_ptr);
  const bool good = any.type_index == pitc::tvm::kTensorPtr && t->device_type == pitc::tvm::kCuda &&
                    t->ndim == ndim && t->bits == bits && !t->strides;
  return good ? t : nullptr;
}

constexpr const char* kSetDevice = "__tvm_set_device";

int SetDevice(const Tensor* tensor) {
  const Any args[] = {Int(tensor->device_type), Int(tensor->device_id)};
  return Launch<kSetDevice>(args, 2);
}

// from [C, W] or [n, W], index [n], to, blocks
template <const char* const& kName>
int Move(const Any* args, int count, int bits) {
  if (count != 4) return Refuse("expected 4 arguments");
  const Tensor *from = TensorOf(args[0], 2, bits), *index = TensorOf(args[1], 1, 32),
               *to = TensorOf(args[2], 2, bits);
  if (!from || !index || !to || from->shape[1] != to->shape[1])
    return Refuse("expected tensors on a CUDA device");
  if (const int code = SetDevice(from)) return code;
  const int64_t n = index->shape[0], words = from->shape[1];
  const Any all[] = {Pointer(from), Pointer(index), Pointer(to), Int(n),
                     Int(words),    args[3],        Int(8),      Int(32)};
  return Launch<kName>(all, 8);
}

constexpr const char *kPack16 = "pack_b16_kernel", *kUnpack16 = "unpack_b16_kernel",
                     *kPack4 = "pack_b4_kernel", *kPack1 = "pack_b1_kernel",
                     *kUnpack4 = "unpack_b4_kernel", *kUnpack1 = "unpack_b1_kernel",
                     *kScale = "scale_kernel", *kAbsent = "absent_kernel";

}  // namespace

#define FUNCTION(name) API int __tvm_ffi_##name(void*, const Any* args, int32_t count, Any*)
FUNCTION(pack_b16_cuda) { return Move<kPack16>(args, count, 32); }
FUNCTION(unpack_b16_cuda) { return Move<kUnpack16>(args, count, 32); }
FUNCTION(pack_b4_cuda) { return Move<kPack4>(args, count, 32); }
FUNCTION(pack_b1_cuda) { return Move<kPack1>(args, count, 8); }
FUNCTION(unpack_b4_cuda) { return Move<kUnpack4>(args, count, 32); }
FUNCTION(unpack_b1_cuda) { return Move<kUnpack1>(args, count, 8); }

// x float32 [n], factor, bytes of shared memory, blocks
FUNCTION(scale_cuda) {
  const Tensor* x = count == 4 ? TensorOf(args[0], 1, 32) : nullptr;
  if (!x) return Refuse("expected x on a CUDA device");
  const Any all[] = {Pointer(x), args[1], Int(x->shape[0]), args[2], args[3], Int(32)};
  return Launch<kScale>(all, 6);
}

FUNCTION(absent_cuda) { return Launch<kAbsent>(args, count); }

// ---- the tables

struct CudaKernel {
  const char *name, *module, *launch;
};
struct CudaImage {
  const char* module;
  int32_t arch, is_ptx;
  const void* data;
  uint64_t size;
};

#define IMAGE(name, file)                                                         \
  asm(".pushsection .rodata\n.balign 8\n" #name ":\n.incbin \"" file "\"\n" #name \
      "_end:\n.byte 0\n.popsection\n");                                           \
  extern "C" const char name[], name##_end[];
IMAGE(image_75, PITC_IMAGE_75)
IMAGE(image_80, PITC_IMAGE_80)
IMAGE(image_90, PITC_IMAGE_90)

#define MOVE_TAGS "blockIdx.x,threadIdx.y,threadIdx.x"
API const CudaKernel pitc_cuda_kernels[] = {
    {"pack_b16_kernel", "pack_b16_cuda", MOVE_TAGS},
    {"unpack_b16_kernel", "unpack_b16_cuda", MOVE_TAGS},
    {"pack_b4_kernel", "pack_b4_cuda", MOVE_TAGS},
    {"pack_b1_kernel", "pack_b1_cuda", MOVE_TAGS},
    {"unpack_b4_kernel", "unpack_b4_cuda", MOVE_TAGS},
    {"unpack_b1_kernel", "unpack_b1_cuda", MOVE_TAGS},
    {"scale_kernel", "scale_cuda", "tirx.use_dyn_shared_memory,blockIdx.y,threadIdx.x"},
};
API const int32_t pitc_cuda_kernel_count = 7;

#define IMAGES(module)                                                \
  {module, 80, 0, image_80, uint64_t(image_80_end - image_80)},       \
      {module, 90, 0, image_90, uint64_t(image_90_end - image_90)}, { \
    module, 75, 1, image_75, uint64_t(image_75_end - image_75)        \
  }
API const CudaImage pitc_cuda_images[] = {
    IMAGES("pack_b16_cuda"), IMAGES("unpack_b16_cuda"), IMAGES("pack_b4_cuda"),
    IMAGES("pack_b1_cuda"),  IMAGES("unpack_b4_cuda"),  IMAGES("unpack_b1_cuda"),
    IMAGES("scale_cuda"),
};
API const int32_t pitc_cuda_image_count = 21;
