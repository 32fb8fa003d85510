#include "device/constants.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace pitc::cuda {
namespace {

constexpr size_t kCompared = size_t{4} << 20;  // bytes that are read back at a time

size_t BytesOf(const Tensor& tensor) {
  return static_cast<size_t>(tensor.shape.Elements()) *
         static_cast<size_t>(ElementBytes(tensor.type));
}

// A number by which most others are told apart without reading them back.
uint64_t Digest(const Tensor& tensor) {
  const size_t bytes = BytesOf(tensor);
  uint64_t digest = bytes;
  const auto add = [&digest](uint64_t word) {
    digest = (digest ^ word) * 0x9E3779B97F4A7C15u;
    digest ^= digest >> 29;
  };
  size_t at = 0;
  for (uint64_t word; at + sizeof word <= bytes; at += sizeof word) {
    memcpy(&word, tensor.Bytes() + at, sizeof word);
    add(word);
  }
  for (; at < bytes; ++at) add(tensor.Bytes()[at]);
  return digest;
}

}  // namespace

DeviceConstant::DeviceConstant(Device& device, const Tensor& source)
    : device_(device), tensor_(source), bytes_(BytesOf(source)) {
  const OwnStream stream(device);
  memory_ = device.Take(bytes_, stream.handle());
  tensor_.data = reinterpret_cast<const void*>(memory_);
  if (!bytes_) return;
  const Device::Current here(device);
  PITC_CUDA(MemcpyHtoDAsync, memory_, source.data, bytes_, stream.handle());
  stream.Wait();
}

DeviceConstant::~DeviceConstant() {
  try {
    device_.Wait();  // whatever reads it
    device_.GiveBack(memory_, nullptr);
  } catch (const Failure&) {  // the device is lost, and its memory with it
  }
}

bool DeviceConstant::IsCopyOf(Device& device, const Tensor& other) const {
  if (&device != &device_ || other.type != tensor_.type || !(other.shape == tensor_.shape))
    return false;
  const OwnStream stream(device);
  const Device::Current here(device);
  std::vector<uint8_t> part(std::min(bytes_, kCompared));
  for (size_t at = 0; at < bytes_; at += part.size()) {
    const size_t count = std::min(part.size(), bytes_ - at);
    PITC_CUDA(MemcpyDtoHAsync, part.data(), memory_ + at, count, stream.handle());
    stream.Wait();
    if (memcmp(part.data(), other.Bytes() + at, count) != 0) return false;
  }
  return true;
}

std::shared_ptr<const DeviceConstant> KeepOnDevice(Device& device, const Tensor& tensor) {
  using Kept = std::multimap<uint64_t, std::weak_ptr<const DeviceConstant>>;
  static std::mutex mutex;
  static auto* const kept = new Kept;  // never destroyed: sessions may end after main()
  const uint64_t digest = Digest(tensor);
  std::lock_guard<std::mutex> lock(mutex);  // sessions that load at once share, too
  for (auto at = kept->begin(); at != kept->end();)
    at = at->second.expired() ? kept->erase(at) : std::next(at);
  const auto [begin, end] = kept->equal_range(digest);
  for (auto at = begin; at != end; ++at) {
    std::shared_ptr<const DeviceConstant> known = at->second.lock();
    if (known && known->IsCopyOf(device, tensor)) return known;
  }
  auto made = std::make_shared<const DeviceConstant>(device, tensor);
  kept->emplace(digest, made);
  return made;
}

}  // namespace pitc::cuda
