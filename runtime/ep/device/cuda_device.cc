#include "device/cuda_device.h"

#include <cstdint>
#include <deque>

namespace pitc::cuda {
namespace {

constexpr int kLongestName = 256;

int Attribute(int which, DeviceNumber device) {
  int value = 0;
  PITC_CUDA(DeviceGetAttribute, &value, which, device);
  return value;
}

// A pool of this device that keeps what it has: given back at each wait, memory would have to be
// mapped again in each run. It is ours, as others may have set the device's own as they like it.
Result TryMakePool(DeviceNumber device, Pool* pool) {
  PoolProperties properties{};
  properties.allocation_type = kPinnedAllocation;
  properties.location_type = kOnDevice;
  properties.location = device;
  const Result made = TheDriver().MemPoolCreate(pool, &properties);
  if (made != kSuccess) return made;
  uint64_t all = UINT64_MAX;
  return TheDriver().MemPoolSetAttribute(*pool, kReleaseThreshold, &all);
}

}  // namespace

Device& Device::At(int number) {
  static std::mutex mutex;
  static auto* const devices = new std::deque<std::unique_ptr<Device>>;  // never destroyed
  const int count = TheDriver().devices;
  if (number < 0 || number >= count) Fail("expected a CUDA device below ", count, ", got ", number);
  std::lock_guard<std::mutex> lock(mutex);
  devices->resize(static_cast<size_t>(count));
  std::unique_ptr<Device>& device = (*devices)[static_cast<size_t>(number)];
  if (!device) device.reset(new Device(number));
  return *device;
}

Device::Device(int number) : number_(number) {
  DeviceNumber device = 0;
  PITC_CUDA(DeviceGet, &device, number);
  char name[kLongestName] = "";
  PITC_CUDA(DeviceGetName, name, kLongestName, device);
  name[kLongestName - 1] = '\0';
  name_ = name;
  arch_ = 10 * Attribute(kMajor, device) + Attribute(kMinor, device);
  multiprocessors_ = Attribute(kMultiprocessors, device);
  most_shared_bytes_ = Attribute(kMostSharedBytes, device);
  has_pools_ = Attribute(kHasPools, device) != 0;
}

std::string Device::Describe() const {
  return Text("CUDA device ", number_, " (", name_, ", sm_", arch_, ")");
}

void Device::Retain() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (context_) return;
  DeviceNumber device = 0;
  PITC_CUDA(DeviceGet, &device, number_);
  Context context = nullptr;
  PITC_CUDA(DevicePrimaryCtxRetain, &context, device);  // for as long as the process runs
  if (has_pools_) {
    Context before = nullptr;
    PITC_CUDA(CtxGetCurrent, &before);
    PITC_CUDA(CtxSetCurrent, context);
    const auto made = TryMakePool(device, &pool_);
    PITC_CUDA(CtxSetCurrent, before);
    Check(TheDriver(), made, "cuMemPoolCreate");
  }
  context_ = context;
}

Device::Current::Current(Device& device) {
  if (!device.context_) device.Retain();
  PITC_CUDA(CtxGetCurrent, &before_);
  if (before_ == device.context_) return;
  PITC_CUDA(CtxSetCurrent, device.context_);
  changed_ = true;
}

Device::Current::~Current() {
  if (changed_) TheDriver().CtxSetCurrent(before_);
}

Result Device::TryTake(size_t bytes, Stream stream, Address* memory) {
  return pool_ ? TheDriver().MemAllocFromPoolAsync(memory, bytes, pool_, stream)
               : TheDriver().MemAlloc(memory, bytes);
}

Address Device::Take(size_t bytes, Stream stream) {
  if (bytes == 0) return 0;
  const Current here(*this);
  Address memory = 0;
  Result result = TryTake(bytes, stream, &memory);
  if (result == kOutOfMemory && pool_) {  // what other streams gave back may be enough
    PITC_CUDA(CtxSynchronize);
    PITC_CUDA(MemPoolTrimTo, pool_, 0);
    result = TryTake(bytes, stream, &memory);
  }
  if (result == kOutOfMemory) FailForMemory(bytes);
  Check(TheDriver(), result, pool_ ? "cuMemAllocFromPoolAsync" : "cuMemAlloc");
  return memory;
}

void Device::GiveBack(Address memory, Stream stream) {
  if (memory == 0) return;
  const Current here(*this);
  if (pool_) {
    PITC_CUDA(MemFreeAsync, memory, stream);
  } else {
    PITC_CUDA(MemFree, memory);  // it waits for the device
  }
}

void* Device::TakePinned(size_t bytes) {
  if (bytes == 0) return nullptr;
  const Current here(*this);
  void* memory = nullptr;
  PITC_CUDA(MemHostAlloc, &memory, bytes, kPortable);
  return memory;
}

void Device::GiveBackPinned(void* memory) {
  if (!memory) return;
  const Current here(*this);
  PITC_CUDA(MemFreeHost, memory);
}

void Device::FailForMemory(size_t bytes) {
  Wait();
  throw OutOfDeviceMemory(Text("out of device memory: ", bytes, " bytes on ", Describe()));
}

void Device::Wait() {
  const Current here(*this);
  PITC_CUDA(CtxSynchronize);
}

OwnStream::OwnStream(Device& device) : device_(device) {
  const Device::Current here(device);
  PITC_CUDA(StreamCreate, &handle_, 0);
}

OwnStream::~OwnStream() {
  try {
    Wait();
    const Device::Current here(device_);
    PITC_CUDA(StreamDestroy, handle_);
  } catch (const Failure&) {  // the device is lost, and the stream with it
  }
}

void OwnStream::Wait() const {
  const Device::Current here(device_);
  PITC_CUDA(StreamSynchronize, handle_);
}

}  // namespace pitc::cuda
