#include "device/lists.h"

#include <algorithm>
#include <cstring>

namespace pitc::cuda {
namespace {

constexpr size_t kMostLists = 8;  // of a stream

}  // namespace

DeviceList::DeviceList(Device& device, Stream stream, const int32_t* list, int64_t n)
    : device_(device), stream_(stream), numbers_(list, list + n) {
  const size_t bytes = numbers_.size() * sizeof(int32_t);
  if (bytes == 0) return;
  const Device::Current here(device);
  memory_ = device.Take(bytes, stream);
  // From pageable memory: the driver has its own copy when the call returns.
  PITC_CUDA(MemcpyHtoDAsync, memory_, numbers_.data(), bytes, stream);
}

DeviceList::~DeviceList() {
  try {
    device_.GiveBack(memory_, stream_);
  } catch (const Failure&) {  // the device is lost
  }
}

bool DeviceList::Is(Stream stream, const int32_t* list, int64_t n) const {
  return stream == stream_ && static_cast<size_t>(n) == numbers_.size() &&
         std::equal(numbers_.begin(), numbers_.end(), list);
}

DeviceLists::~DeviceLists() {
  try {
    device_.Wait();
  } catch (const Failure&) {  // the device is lost
  }
  for (const auto& list : lists_) list->ForgetStream();
}

std::shared_ptr<const DeviceList> DeviceLists::Get(Stream stream, const int32_t* list, int64_t n,
                                                   bool* fresh) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::find_if(lists_.begin(), lists_.end(),
                                    [&](const auto& known) { return known->Is(stream, list, n); });
    if (found != lists_.end()) {
      lists_.splice(lists_.begin(), lists_, found);
      *fresh = false;
      return lists_.front();
    }
  }
  auto made = std::make_shared<DeviceList>(device_, stream, list, n);
  *fresh = true;
  std::shared_ptr<DeviceList> oldest;  // let go outside the lock
  std::lock_guard<std::mutex> lock(mutex_);
  lists_.push_front(made);
  const auto of_stream = [&](const auto& known) { return known->stream() == stream; };
  if (static_cast<size_t>(std::count_if(lists_.begin(), lists_.end(), of_stream)) > kMostLists) {
    const auto last = std::find_if(lists_.rbegin(), lists_.rend(), of_stream);
    oldest = std::move(*last);
    lists_.erase(std::next(last).base());
  }
  return made;
}

}  // namespace pitc::cuda
