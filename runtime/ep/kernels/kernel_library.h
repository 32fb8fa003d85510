// A library of kernels beside the model: loaded with dlopen alone, no TVM in the process.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "base/cpu_level.h"
#include "kernels/tvm_abi.h"
#include "machines.h"

namespace pitc {

class KernelLibrary {
 public:
  // Opens `name` in `folder`. `name` is a bare file name (ParsePlan has checked it); a link may not
  // lead out of the folder. Sessions that use the same file share one object. Throws Failure.
  static std::shared_ptr<const KernelLibrary> Open(const std::string& folder,
                                                   const std::string& name);

  KernelLibrary(const KernelLibrary&) = delete;
  KernelLibrary& operator=(const KernelLibrary&) = delete;
  ~KernelLibrary();

  // The kernel `symbol`, or null.
  tvm::Function Find(const std::string& symbol) const;

  // What the library exports as `name`, or null.
  void* Symbol(const char* name) const;

  // Which build of the kernels it is, as the plans made with it say; "" where it does not tell.
  const std::string& Identity() const { return identity_; }

  // Why the last call on this thread failed, in the library's own words.
  std::string LastError() const;

 private:
  explicit KernelLibrary(const std::string& path);

  void* handle_;
  const char* (*last_error_)() = nullptr;
  std::string identity_;
};

// A kernel, and what keeps it loaded.
struct Kernel {
  std::shared_ptr<const KernelLibrary> library;
  tvm::Function function = nullptr;
  std::string symbol;
  CpuLevel level = CpuLevel::kBaseline;  // that it is compiled for
};

// Where the tensors of a call lie.
struct Place {
  int32_t type = tvm::kCpu;
  int32_t number = 0;
};

// The arguments of one kernel call, in order.
class KernelCall {
 public:
  KernelCall() = default;
  explicit KernelCall(Place place) : place_(place) {}

  KernelCall& Floats(const void* data, std::initializer_list<int64_t> shape);
  // Kernels see bfloat16 as words.
  KernelCall& Numbers(const void* data, Element type, std::initializer_list<int64_t> shape);
  KernelCall& Int32s(const void* data, std::initializer_list<int64_t> shape);
  KernelCall& Int64s(const void* data, std::initializer_list<int64_t> shape);
  KernelCall& Bits(const void* data, std::initializer_list<int64_t> shape);  // words of 32
  KernelCall& Words(const void* data, int word_bytes, std::initializer_list<int64_t> shape);
  KernelCall& Int(int64_t value);
  KernelCall& Float(double value);

  // Throws Failure when the kernel refuses its arguments.
  void Run(const Kernel& kernel);

 private:
  static constexpr int kMostTensors = 19, kMostArgs = 32, kMostDims = 3;

  KernelCall& Array(const void* data, uint8_t code, int bits, std::initializer_list<int64_t> shape);
  tvm::Any& Next();

  const Place place_;
  tvm::Tensor tensors_[kMostTensors];
  int64_t shapes_[kMostTensors][kMostDims];
  tvm::Any args_[kMostArgs];
  int tensor_count_ = 0, arg_count_ = 0;
};

}  // namespace pitc
