// Numbers of bfloat16.
#include "simd/level.h"

namespace pitc::PITC_LEVEL {
namespace {

constexpr int kLanes = kBytes / 4;
typedef uint16_t Halves __attribute__((vector_size(kBytes / 2)));

// The nearest ones, ties to even; of what is below 0 nothing, if only what is above counts. NaN
// stays NaN.
template <Live kLive>
Halves Rounded(const Words32& v) {
  const auto nan = reinterpret_cast<Words32>(v + v > 0xff000000u);
  const Words32 near = (v + 0x7fffu + (v >> 16 & 1u)) >> 16, quiet = v >> 16 | 0x40u;
  Words32 all = (nan & quiet) | (~nan & near);
  if (kLive == Live::kPositive) {
    const auto negative = reinterpret_cast<Words32>(reinterpret_cast<Ints>(v) >> 31);
    all &= ~negative | nan;
  }
  return __builtin_convertvector(all, Halves);
}

template <Live kLive>
void RoundAll(const float* row, int64_t n, uint16_t* to) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Halves halves = Rounded<kLive>(Load<Words32>(row + i));
    __builtin_memcpy(to + i, &halves, sizeof halves);
  }
  float rest[kLanes] = {};
  for (int64_t j = 0; i + j < n; ++j) rest[j] = row[i + j];
  const Halves halves = Rounded<kLive>(Load<Words32>(rest));
  for (int64_t j = 0; i + j < n; ++j) to[i + j] = halves[j];
}

}  // namespace

void Round(Live live, const float* row, int64_t n, uint16_t* to) {
  if (live == Live::kPositive) {
    RoundAll<Live::kPositive>(row, n, to);
  } else {
    RoundAll<Live::kNotZero>(row, n, to);
  }
}

}  // namespace pitc::PITC_LEVEL
