// How a thread rounds and what it does with denormals: kernels need round to nearest, and their
// results must not depend on what the host's threads are set to.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace pitc {

enum class Denormals { kKept, kZero };

// The mode for kernels on this thread; the caller's again at the end. Costs a few cycles where they
// are the same.
class FloatMode {
 public:
#if defined(__x86_64__)
  explicit FloatMode(Denormals denormals) : before_(_mm_getcsr()) {
    constexpr unsigned kStatus = 0x3f, kMasked = 0x1f80, kFlushed = 0x8040;  // to zero, in and out
    const unsigned wanted = kMasked | (denormals == Denormals::kZero ? kFlushed : 0);
    changed_ = (before_ & ~kStatus) != wanted;
    if (changed_) _mm_setcsr(wanted);
  }
  ~FloatMode() {
    if (changed_) _mm_setcsr(before_);
  }
#else
  explicit FloatMode(Denormals) {
    fegetenv(&before_);
    fesetenv(FE_DFL_ENV);
  }
  ~FloatMode() { fesetenv(&before_); }
#endif
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  unsigned before_;
  bool changed_;
#else
  fenv_t before_;
#endif
};

}  // namespace pitc
