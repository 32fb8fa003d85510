// Does not compile when ep/device/cuda_abi.h and NVIDIA's cuda.h disagree. Never linked or run.
#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "../ep/device/cuda_abi.h"

namespace pitc::cuda {

constexpr bool Same(const char* a, const char* b) {
  for (; *a && *a == *b; ++a) ++b;
  return *a == *b;
}

// Two types that are passed alike: handles are pointers to something that nobody knows.
template <class Own, class Theirs>
constexpr bool kAlike =
    std::is_same_v<Own, Theirs> || (std::is_pointer_v<Own> && std::is_pointer_v<Theirs>) ||
    (std::is_enum_v<Theirs> && sizeof(Own) == sizeof(Theirs) && std::is_integral_v<Own>);

template <class Theirs, class... Own>
struct Compare;
template <class... Theirs, class... Own>
struct Compare<CUresult (*)(Theirs...), Own...> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(Own) == sizeof...(Theirs))
      return (kAlike<Own, Theirs> && ...);
    else
      return false;
  }();
};

// Pasted, the name is that of the header, which may stand for another symbol.
#define TEXT_OF(name) #name
#define SYMBOL_OF(name) TEXT_OF(name)
#define CHECK_FUNCTION(name, symbol, ...)                                      \
  static_assert(Same(SYMBOL_OF(cu##name), symbol), symbol ": another symbol"); \
  static_assert(Compare<decltype(&cu##name) __VA_OPT__(, ) __VA_ARGS__>::value, symbol ": type");
PITC_CUDA_FUNCTIONS(CHECK_FUNCTION)

static_assert(kSuccess == CUDA_SUCCESS && kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY &&
              kNoDevice == CUDA_ERROR_NO_DEVICE && kInvalidImage == CUDA_ERROR_INVALID_IMAGE &&
              kNoBinary == CUDA_ERROR_NO_BINARY_FOR_GPU && kInvalidPtx == CUDA_ERROR_INVALID_PTX &&
              kUncorrectable == CUDA_ERROR_ECC_UNCORRECTABLE &&
              kLinkUncorrectable == CUDA_ERROR_NVLINK_UNCORRECTABLE &&
              kNoJit == CUDA_ERROR_JIT_COMPILER_NOT_FOUND &&
              kUnsupportedPtx == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
static_assert(kIllegalAddress == CUDA_ERROR_ILLEGAL_ADDRESS &&
              kLaunchTimeout == CUDA_ERROR_LAUNCH_TIMEOUT && kAssert == CUDA_ERROR_ASSERT &&
              kContextDestroyed == CUDA_ERROR_CONTEXT_IS_DESTROYED &&
              kHardwareStack == CUDA_ERROR_HARDWARE_STACK_ERROR &&
              kIllegalInstruction == CUDA_ERROR_ILLEGAL_INSTRUCTION &&
              kMisalignedAddress == CUDA_ERROR_MISALIGNED_ADDRESS &&
              kInvalidAddressSpace == CUDA_ERROR_INVALID_ADDRESS_SPACE &&
              kInvalidPc == CUDA_ERROR_INVALID_PC && kLaunchFailed == CUDA_ERROR_LAUNCH_FAILED);
#if CUDA_VERSION >= 13000
static_assert(kContained == CUDA_ERROR_CONTAINED &&
              kTensorMemoryLeak == CUDA_ERROR_TENSOR_MEMORY_LEAK);
#endif
static_assert(kMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT &&
              kMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR &&
              kMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR &&
              kMostSharedBytes == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN &&
              kHasPools == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED &&
              kMostDynamicSharedBytes == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES &&
              kSharedCarveout == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT &&
              kReleaseThreshold == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD &&
              kPinnedAllocation == CU_MEM_ALLOCATION_TYPE_PINNED &&
              kOnDevice == CU_MEM_LOCATION_TYPE_DEVICE && kNoTiming == CU_EVENT_DISABLE_TIMING &&
              kPortable == CU_MEMHOSTALLOC_PORTABLE);

#define SAME(own, theirs) \
  static_assert(offsetof(PoolProperties, own) == offsetof(CUmemPoolProps, theirs), #own)
SAME(allocation_type, allocType);
SAME(handle_types, handleTypes);
SAME(location_type, location.type);
SAME(location, location.id);
SAME(security, win32SecurityAttributes);
SAME(most_bytes, maxSize);
SAME(usage, usage);
SAME(reserved, reserved);
static_assert(sizeof(PoolProperties) == sizeof(CUmemPoolProps));

}  // namespace pitc::cuda
