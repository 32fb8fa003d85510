// Constant inputs of nodes in device memory: one copy for all sessions of this process that have
// the same bytes.
#pragma once

#include <memory>

#include "device/cuda_device.h"
#include "ort/tensor.h"

namespace pitc::cuda {

class DeviceConstant {
 public:
  // Copies the elements of `source`, which lie in the host's memory. Throws OutOfDeviceMemory.
  DeviceConstant(Device& device, const Tensor& source);
  DeviceConstant(const DeviceConstant&) = delete;
  DeviceConstant& operator=(const DeviceConstant&) = delete;
  ~DeviceConstant();

  const Tensor& tensor() const { return tensor_; }  // its data are on the device
  bool IsCopyOf(Device& device, const Tensor& other) const;

 private:
  Device& device_;
  Tensor tensor_;
  size_t bytes_;
  Address memory_ = 0;
};

// The constant that holds what `tensor` holds, made unless some session has it.
std::shared_ptr<const DeviceConstant> KeepOnDevice(Device& device, const Tensor& tensor);

}  // namespace pitc::cuda
