// What ONNX Runtime asks of a provider whose tensors lie on a device: allocators, copies, streams.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "device/cuda_device.h"
#include "ort/ort.h"

namespace pitc::cuda {

// Memory of one device, or of the host for copies to and from it.
class Allocator : public OrtAllocator {
 public:
  Allocator(const Host& host, const OrtMemoryInfo* info, int device, bool pinned, uint32_t version);

 private:
  // Null where there is no memory, or no bytes. ONNX Runtime cannot be told why; its log can.
  void* Take(size_t bytes, std::shared_ptr<OwnStream> stream) noexcept;
  void GiveBack(void* memory) noexcept;
  Device& device() const { return Device::At(device_); }

  const Host host_;
  const OrtMemoryInfo* const info_;
  const int device_;
  const bool pinned_;
  std::mutex mutex_;
  // In whose order a piece was taken; gone when nobody knows of that stream any more, or nobody
  // ever did.
  std::map<void*, std::weak_ptr<OwnStream>> taken_;
  std::shared_ptr<OwnStream> own_;  // for those without a stream
};

OrtDataTransferImpl* NewDataTransfer(const Host& host, uint32_t version);

OrtSyncStreamImpl* NewSyncStream(const Host& host, int device, uint32_t version);

}  // namespace pitc::cuda
