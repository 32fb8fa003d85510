// Bits of what lives.
#include "simd/level.h"

namespace pitc::PITC_LEVEL {
namespace {

constexpr uint32_t kMinusInfinity = 0xff800000;  // above it, as an unsigned number: NaN
constexpr int kLanes = kBytes / 4;

// Not 0 where the element is live. Integers decide: a comparison of floats would depend on how the
// thread treats denormals. Doubled, values lose their signs; what is below 0 is live only as a NaN.
template <Live kLive>
Ints Mark(const Words32& v) {
  if (kLive == Live::kNotZero) return reinterpret_cast<Ints>(v + v);
  if (kLive == Live::kWords) return reinterpret_cast<Ints>(v & 0x7fff7fffu);
  const Ints negative = reinterpret_cast<Ints>(v) >> 31;
  const Ints above =
      reinterpret_cast<Ints>(v - (reinterpret_cast<Words32>(negative) & kMinusInfinity));
  return above & ~(above >> 31);
}

template <Live kLive>
uint64_t Bits64(const float* values) {
  // What is read next comes from memory; harmless behind the last row.
  for (uintptr_t i = 0; i < 256; i += 64)
    __builtin_prefetch(
        reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(values) + 1024 + i));
  const auto mark = [=](int i) { return Mark<kLive>(Load<Words32>(values + i)); };
  uint64_t word = 0;
  for (int i = 0; i < 64; i += kBytes) {
    word |= NotZero(Narrowed(mark(i), mark(i + kLanes), mark(i + 2 * kLanes), mark(i + 3 * kLanes)))
            << i;
  }
  return word;
}

template <Live kLive>
void AllBits(const float* row, int64_t n, uint64_t* bits) {
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) *bits++ = Bits64<kLive>(row + i);
  if (i == n) return;
  float values[64] = {};
  for (int64_t j = 0; i + j < n; ++j) values[j] = row[i + j];
  *bits = Bits64<kLive>(values);
}

}  // namespace

void LiveBits(Live live, const float* row, int64_t n, uint64_t* bits) {
  if (live == Live::kNotZero) {
    AllBits<Live::kNotZero>(row, n, bits);
  } else if (live == Live::kWords) {
    AllBits<Live::kWords>(row, n, bits);
  } else {
    AllBits<Live::kPositive>(row, n, bits);
  }
}

int64_t MaskBits(const uint8_t* bytes, int64_t n, uint64_t* bits) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += 64) {
    uint8_t rest[64];
    const uint8_t* from = bytes + i;
    if (n - i < 64) {
      for (int64_t j = 0; j < 64; ++j) rest[j] = i + j < n ? from[j] : 0;
      from = rest;
    }
    uint64_t word = 0;
    for (int j = 0; j < 64; j += kBytes) word |= NotZero(Load<Bytes>(from + j)) << j;
    *bits++ = word;
    count += __builtin_popcountll(word);
  }
  return count;
}

}  // namespace pitc::PITC_LEVEL
