// NVIDIA's driver, if this machine has one: libcuda.so.1, found when it is first asked for. Nothing
// else of CUDA is needed, neither its runtime nor a toolkit.
#pragma once

#include <string>

#include "base/failure.h"
#include "device/cuda_abi.h"

namespace pitc::cuda {

// CUDA 12.0: the first driver of the oldest toolkit whose images the compiler writes.
constexpr int kOldestDriver = 12000;

// The functions in use.
struct Driver {
#define PITC_CUDA_MEMBER(name, symbol, ...) Result (*name)(__VA_ARGS__) = nullptr;
  PITC_CUDA_FUNCTIONS(PITC_CUDA_MEMBER)
#undef PITC_CUDA_MEMBER
  int version = 0;  // 12040 is CUDA 12.4
  int devices = 0;
};

// The same for all, for as long as the process runs. Throws Failure: there is none, it is too old
// or it has no device.
const Driver& TheDriver();

// Why there is none; "" when there is one.
const std::string& DriverTrouble();

// `12.4`
std::string VersionText(int version);

// What a result says, in the driver's own words: `cuMemAlloc: CUDA_ERROR_.. (..)`.
std::string Told(const Driver& driver, Result result, const char* what);

// Throws Failure, or OutOfDeviceMemory, unless it is a success. `what`: the function that was
// called.
void Check(const Driver& driver, Result result, const char* what);

// Calls a function of the driver by its name in the table; throws as Check.
#define PITC_CUDA(name, ...)                                                                  \
  ::pitc::cuda::Check(::pitc::cuda::TheDriver(), ::pitc::cuda::TheDriver().name(__VA_ARGS__), \
                      "cu" #name)

}  // namespace pitc::cuda
