#include "ort/constants.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "ort/large_memory.h"

namespace pitc {
namespace {

constexpr size_t kLarge = size_t{1} << 20;  // smaller ones are found in few page tables anyway
constexpr std::align_val_t kAlignment{64};

size_t BytesOf(const Tensor& tensor) {
  return static_cast<size_t>(tensor.shape.Elements()) *
         static_cast<size_t>(ElementBytes(tensor.type));
}

// False where the file is not what it was when ONNX Runtime looked.
bool ReadPart(const FilePart& part, void* memory, size_t bytes) {
  if (part.bytes != bytes) return false;
  const int file = open(part.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(file, static_cast<char*>(memory) + done, bytes - done,
                              part.offset + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  close(file);
  return done == bytes;
}

}  // namespace

Constant::Constant(const Tensor& source, const std::optional<FilePart>& file)
    : tensor_(source), bytes_(BytesOf(source)) {
  memory_ = bytes_ < kLarge ? ::operator new(bytes_ + 1, kAlignment) : MapLarge(bytes_);
  if (!memory_) throw std::bad_alloc();
  const bool read = file && ReadPart(*file, memory_, bytes_);
  if (!read && bytes_) memcpy(memory_, source.data, bytes_);
  tensor_.data = memory_;
}

Constant::~Constant() {
  if (bytes_ < kLarge)
    ::operator delete(memory_, kAlignment);
  else
    UnmapLarge(memory_, bytes_);
}

bool Constant::IsCopyOf(const Tensor& other) const {
  const Shape& shape = tensor_.shape;
  return other.type == tensor_.type && other.shape == shape &&
         (bytes_ == 0 || memcmp(memory_, other.data, bytes_) == 0);
}

void PassedConstant::Find(const Tensor& tensor) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (found_) return;
  tensor_ = tensor;
  found_.store(&tensor_, std::memory_order_release);
}

std::shared_ptr<const Constant> Constants::Find(const std::string& name,
                                                const FilePart& file) const {
  const auto [begin, end] = kept_.equal_range(name);
  for (auto at = begin; at != end; ++at) {
    const std::optional<FilePart>& known = at->second.file;
    const bool same = known && known->path == file.path && known->offset == file.offset &&
                      known->bytes == file.bytes;
    if (std::shared_ptr<const Constant> found = same ? at->second.constant.lock() : nullptr)
      return found;
  }
  return nullptr;
}

std::shared_ptr<const Constant> Constants::Keep(const std::string& name, const Tensor& tensor,
                                                const std::optional<FilePart>& file) {
  const auto [begin, end] = kept_.equal_range(name);
  for (auto at = begin; at != end; ++at) {
    std::shared_ptr<const Constant> known = at->second.constant.lock();
    if (known && known->IsCopyOf(tensor)) return known;
  }
  auto made = std::make_shared<const Constant>(tensor, file);
  kept_.emplace(name, Kept{made, file});
  return made;
}

}  // namespace pitc
