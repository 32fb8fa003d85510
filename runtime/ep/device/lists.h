// Lists of indices of the host, on the device: nodes of a run read the same few, and so does the
// next run where its mask is the same.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "device/cuda_device.h"

namespace pitc::cuda {

// A list in device memory, for one stream.
class DeviceList {
 public:
  // Throws OutOfDeviceMemory.
  DeviceList(Device& device, Stream stream, const int32_t* list, int64_t n);
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  ~DeviceList();  // memory is given back in the order of the stream

  const int32_t* data() const { return reinterpret_cast<const int32_t*>(memory_); }
  bool Is(Stream stream, const int32_t* list, int64_t n) const;
  Stream stream() const { return stream_; }
  void ForgetStream() { stream_ = nullptr; }  // which may be gone

 private:
  Device& device_;
  Stream stream_;
  std::vector<int32_t> numbers_;  // as they are there
  Address memory_ = 0;
};

// Those that a session used last. A list is known by what it holds, never by where it was.
class DeviceLists {
 public:
  explicit DeviceLists(Device& device) : device_(device) {}
  DeviceLists(const DeviceLists&) = delete;
  DeviceLists& operator=(const DeviceLists&) = delete;
  ~DeviceLists();

  // `fresh`: set where it had to be copied. Keep what is returned until all that read it is
  // launched.
  std::shared_ptr<const DeviceList> Get(Stream stream, const int32_t* list, int64_t n, bool* fresh);

 private:
  Device& device_;
  std::mutex mutex_;
  std::list<std::shared_ptr<DeviceList>> lists_;  // last used first
};

}  // namespace pitc::cuda
