#include "base/arena.h"

#include <new>

namespace pitc {
namespace {

constexpr size_t kAlign = 64;
constexpr std::align_val_t kAlignment{kAlign};

}  // namespace

Arena& Arena::Local() {
  thread_local Arena arena;
  return arena;
}

Arena::~Arena() {
  PopTo(nullptr);
  ::operator delete(block_, kAlignment);
}

void* Arena::Take(uint64_t bytes) {
  static_assert(sizeof(Header) <= kAlign);
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  const size_t need =
      (static_cast<size_t>(bytes) + 2 * kAlign - 1) / kAlign * kAlign;  // with the header
  if (need > kKept - used_) {
    top_ = TakeLarge(need);
  } else {
    if (!block_) block_ = static_cast<char*>(::operator new(kKept, kAlignment));
    top_ = new (block_ + used_) Header{top_, false, false, nullptr, nullptr};
    used_ += need;
  }
  return reinterpret_cast<char*>(top_) + kAlign;
}

Arena::Header* Arena::TakeLarge(size_t need) {
  void* const memory =
      lender_ ? lender_->Lend(need + kAlign - 1) : ::operator new(need, kAlignment);
  const size_t past = reinterpret_cast<uintptr_t>(memory) % kAlign;
  char* const at = static_cast<char*>(memory) + (past ? kAlign - past : 0);
  return new (at) Header{top_, false, true, lender_, memory};
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
    const Header piece = *top_;
    if (!piece.large) {
      used_ = static_cast<size_t>(reinterpret_cast<char*>(top_) - block_);
    } else if (piece.lender) {
      piece.lender->TakeBack(piece.memory);
    } else {
      ::operator delete(piece.memory, kAlignment);
    }
    top_ = piece.below;
  }
}

}  // namespace pitc
