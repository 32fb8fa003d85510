// Memory of one run that ONNX Runtime lends: it counts there, and its arena keeps it for the next
// run, or gives it back as the session's options say.
#pragma once

#include <mutex>

#include "base/arena.h"
#include "ort/ort.h"

namespace pitc {

class RunMemory final : public Lender {
 public:
  RunMemory(const Host& host, const OrtKernelContext* context) : host_(host), context_(context) {}
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;
  ~RunMemory();

  void* Lend(size_t bytes) override;
  void TakeBack(void* memory) noexcept override;

 private:
  OrtAllocator* Allocator();

  const Host& host_;
  const OrtKernelContext* context_;
  std::mutex mutex_;
  OrtAllocator* allocator_ = nullptr;  // most runs need none
};

}  // namespace pitc
