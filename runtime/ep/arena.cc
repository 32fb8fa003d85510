#include "arena.h"

#include <algorithm>
#include <new>

namespace pitc {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kSmallestBlock = size_t{256} << 10;
constexpr size_t kLargestKept = size_t{64} << 20;  // an idle thread holds no more than this
constexpr std::align_val_t kAlignment{kAlign};

}  // namespace

Arena& Arena::Local() {
  thread_local Arena arena;
  return arena;
}

Arena::~Arena() {
  for (Block& block : blocks_) ::operator delete(block.base, kAlignment);
}

size_t Arena::Capacity() const {
  size_t bytes = 0;
  for (const Block& block : blocks_) bytes += block.size;
  return bytes;
}

void Arena::AddBlock(size_t size) {
  blocks_.reserve(blocks_.size() + 1);
  blocks_.push_back({static_cast<char*>(::operator new(size, kAlignment)), size, 0});
}

void* Arena::Take(uint64_t bytes) {
  static_assert(sizeof(Header) <= kAlign);
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  const size_t need =
      (static_cast<size_t>(bytes) + 2 * kAlign - 1) / kAlign * kAlign;  // with the header
  size_t at = current_;
  while (at < blocks_.size() && blocks_[at].size - blocks_[at].used < need) ++at;
  if (at == blocks_.size()) {
    size_t grown =
        blocks_.empty() ? kSmallestBlock : std::min(2 * blocks_.back().size, kLargestKept);
    AddBlock(std::max(need, grown));
  }
  current_ = at;
  Block& block = blocks_[at];
  top_ = new (block.base + block.used) Header{top_, at, false};
  block.used += need;
  return reinterpret_cast<char*>(top_) + kAlign;
}

void Arena::Free(void* memory) {
  if (!memory) return;
  reinterpret_cast<Header*>(static_cast<char*>(memory) - kAlign)->free = true;
  Header* rest = top_;
  while (rest && rest->free) rest = rest->below;
  PopTo(rest);
}

void Arena::PopTo(void* top) {
  while (top_ != top) {
    Block& block = blocks_[top_->block];
    block.used = static_cast<size_t>(reinterpret_cast<char*>(top_) - block.base);
    top_ = top_->below;
  }
  current_ = top_ ? top_->block : 0;
  if (!top_) MergeBlocks();
}

void Arena::MergeBlocks() {
  size_t bytes = Capacity();
  if (blocks_.size() <= 1 && bytes <= kLargestKept) return;
  for (Block& block : blocks_) ::operator delete(block.base, kAlignment);
  blocks_.clear();
  try {
    AddBlock(std::min(bytes, kLargestKept));
  } catch (const std::bad_alloc&) {  // the next Take asks again
  }
}

}  // namespace pitc
