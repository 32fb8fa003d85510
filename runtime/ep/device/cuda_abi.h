// The part of NVIDIA's driver API that is in use: this project's own declaration of names, types
// and numbers, which abi/cuda_check.cc compares with cuda.h where that is installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pitc::cuda {

using Result = int;
using DeviceNumber = int;
using Address = unsigned long long;  // of device memory
using Context = struct ContextObject*;
using Stream = struct StreamObject*;  // null: the stream that waits for all blocking ones
using Event = struct EventObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;
using Pool = struct PoolObject*;

struct PoolProperties {
  int allocation_type, handle_types, location_type, location;
  void* security;
  size_t most_bytes;
  unsigned short usage;
  unsigned char reserved[54];
};

constexpr Result kSuccess = 0, kOutOfMemory = 2, kNoDevice = 100, kInvalidImage = 200,
                 kNoBinary = 209, kUncorrectable = 214, kInvalidPtx = 218, kLinkUncorrectable = 220,
                 kNoJit = 221, kUnsupportedPtx = 222, kContained = 226, kIllegalAddress = 700,
                 kLaunchTimeout = 702, kContextDestroyed = 709, kAssert = 710, kHardwareStack = 714,
                 kIllegalInstruction = 715, kMisalignedAddress = 716, kInvalidAddressSpace = 717,
                 kInvalidPc = 718, kLaunchFailed = 719, kTensorMemoryLeak = 721;
// Attributes of a device, of a function and of a pool.
constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76, kMostSharedBytes = 97,
              kHasPools = 115;
constexpr int kMostDynamicSharedBytes = 8, kSharedCarveout = 9;
constexpr int kReleaseThreshold = 4;
constexpr int kPinnedAllocation = 1, kOnDevice = 1;
constexpr unsigned kNoTiming = 2, kPortable = 1;

// F(NAME, SYMBOL, PARAMETERS...): `cuNAME` of cuda.h is exported as SYMBOL; all return a Result.
#define PITC_CUDA_FUNCTIONS(F)                                                                  \
  F(Init, "cuInit", unsigned)                                                                   \
  F(DriverGetVersion, "cuDriverGetVersion", int*)                                               \
  F(GetErrorName, "cuGetErrorName", Result, const char**)                                       \
  F(GetErrorString, "cuGetErrorString", Result, const char**)                                   \
  F(DeviceGetCount, "cuDeviceGetCount", int*)                                                   \
  F(DeviceGet, "cuDeviceGet", DeviceNumber*, int)                                               \
  F(DeviceGetName, "cuDeviceGetName", char*, int, DeviceNumber)                                 \
  F(DeviceGetAttribute, "cuDeviceGetAttribute", int*, int, DeviceNumber)                        \
  F(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", Context*, DeviceNumber)                 \
  F(CtxGetCurrent, "cuCtxGetCurrent", Context*)                                                 \
  F(CtxSetCurrent, "cuCtxSetCurrent", Context)                                                  \
  F(CtxSynchronize, "cuCtxSynchronize")                                                         \
  F(MemAlloc, "cuMemAlloc_v2", Address*, size_t)                                                \
  F(MemFree, "cuMemFree_v2", Address)                                                           \
  F(MemPoolCreate, "cuMemPoolCreate", Pool*, const PoolProperties*)                             \
  F(MemPoolSetAttribute, "cuMemPoolSetAttribute", Pool, int, void*)                             \
  F(MemPoolTrimTo, "cuMemPoolTrimTo", Pool, size_t)                                             \
  F(MemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", Address*, size_t, Pool, Stream)           \
  F(MemFreeAsync, "cuMemFreeAsync", Address, Stream)                                            \
  F(MemHostAlloc, "cuMemHostAlloc", void**, size_t, unsigned)                                   \
  F(MemFreeHost, "cuMemFreeHost", void*)                                                        \
  F(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", Address, const void*, size_t, Stream)              \
  F(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", void*, Address, size_t, Stream)                    \
  F(MemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", Address, Address, size_t, Stream)                  \
  F(MemsetD8Async, "cuMemsetD8Async", Address, unsigned char, size_t, Stream)                   \
  F(StreamCreate, "cuStreamCreate", Stream*, unsigned)                                          \
  F(StreamDestroy, "cuStreamDestroy_v2", Stream)                                                \
  F(StreamSynchronize, "cuStreamSynchronize", Stream)                                           \
  F(StreamWaitEvent, "cuStreamWaitEvent", Stream, Event, unsigned)                              \
  F(EventCreate, "cuEventCreate", Event*, unsigned)                                             \
  F(EventDestroy, "cuEventDestroy_v2", Event)                                                   \
  F(EventRecord, "cuEventRecord", Event, Stream)                                                \
  F(EventSynchronize, "cuEventSynchronize", Event)                                              \
  F(ModuleLoadData, "cuModuleLoadData", Module*, const void*)                                   \
  F(ModuleUnload, "cuModuleUnload", Module)                                                     \
  F(ModuleGetFunction, "cuModuleGetFunction", Function*, Module, const char*)                   \
  F(FuncSetAttribute, "cuFuncSetAttribute", Function, int, int)                                 \
  F(LaunchKernel, "cuLaunchKernel", Function, unsigned, unsigned, unsigned, unsigned, unsigned, \
    unsigned, unsigned, Stream, void**, void**)

}  // namespace pitc::cuda
