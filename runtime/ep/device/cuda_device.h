// One NVIDIA GPU: its context, which it shares with all who use CUDA's runtime in this process, its
// memory and its streams.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "device/cuda_driver.h"

namespace pitc::cuda {

class Device {
 public:
  // The device with that number, the same object for all. Nothing of it is used before it is asked
  // for memory or a stream: a context takes hundreds of megabytes. Throws Failure.
  static Device& At(int number);

  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int number() const { return number_; }
  const std::string& name() const { return name_; }
  int arch() const { return arch_; }  // 90: sm_90
  int multiprocessors() const { return multiprocessors_; }
  int most_shared_bytes() const { return most_shared_bytes_; }  // of a block that asks for them
  std::string Describe() const;                                 // `CUDA device 0 (NAME, sm_90)`

  // While it lives, calls of this thread go to the device; then to the one that was before.
  class Current {
   public:
    explicit Current(Device& device);
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current();

   private:
    Context before_ = nullptr;
    bool changed_ = false;
  };

  // Memory that may be used in the order of `stream`, 256-byte aligned; 0 for no bytes. Throws
  // OutOfDeviceMemory.
  Address Take(size_t bytes, Stream stream);
  // Gives it back, when what `stream` has been told before is done.
  void GiveBack(Address memory, Stream stream);

  // Memory of the host that copies need not move before they send it.
  void* TakePinned(size_t bytes);
  void GiveBackPinned(void* memory);

  // For whoever was given none by an allocator, which cannot say why: throws OutOfDeviceMemory, or
  // that the device is lost.
  [[noreturn]] void FailForMemory(size_t bytes);

  void Wait();  // until all streams are done; throws what went wrong in them

 private:
  explicit Device(int number);
  void Retain();  // the context, once
  Result TryTake(size_t bytes, Stream stream, Address* memory);

  const int number_;
  std::string name_;
  int arch_ = 0, multiprocessors_ = 0, most_shared_bytes_ = 0;
  bool has_pools_ = false;
  std::mutex mutex_;
  std::atomic<Context> context_{nullptr};
  Pool pool_ = nullptr;  // with context_; null: it has none
};

// A stream of our own. It waits for the stream that is null, as that does for it: who has no stream
// needs no event.
class OwnStream {
 public:
  explicit OwnStream(Device& device);
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream();  // waits for it

  Device& device() const { return device_; }
  Stream handle() const { return handle_; }
  void Wait() const;

 private:
  Device& device_;
  Stream handle_ = nullptr;
};

}  // namespace pitc::cuda
