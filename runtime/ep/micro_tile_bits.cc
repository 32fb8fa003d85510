// Bits of what is not zero.
#include <algorithm>
#include <cstring>

#include "cpu_targets.h"
#include "micro_tiles.h"

namespace pitc {
namespace {

constexpr uint32_t kMinusInfinity = 0xff800000;  // above it, as an unsigned number: NaN

// Integers decide: a comparison of floats would depend on how the thread treats denormals.
template <Live kLive>
uint64_t BitsOf(const float* values, int64_t n) {
  uint64_t word = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    memcpy(&bits, values + i, sizeof bits);
    const bool live = kLive == Live::kNotZero
                          ? bits << 1 != 0
                          : static_cast<int32_t>(bits) > 0 || bits > kMinusInfinity;
    word |= static_cast<uint64_t>(live) << i;
  }
  return word;
}

template <Live kLive>
void BitsScalar(const float* row, int64_t n, uint64_t* bits) {
  for (int64_t i = 0; i < n; i += 64)
    *bits++ = BitsOf<kLive>(row + i, std::min<int64_t>(64, n - i));
}

#if defined(__x86_64__)

// What is read next comes from memory; harmless behind the last row.
inline void Prefetch(const float* values) {
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(values) + 1024),
               _MM_HINT_T0);
}

// Not 0 where the element is live. Doubled as integers, values lose their signs; what is below 0 is
// live only as a NaN.
template <Live kLive>
PITC_V3 inline __m256i Mark(__m256i v) {
  if (kLive == Live::kNotZero) return _mm256_add_epi32(v, v);
  const __m256i above = _mm256_sub_epi32(v, _mm256_set1_epi32(static_cast<int>(kMinusInfinity)));
  const __m256i nan = _mm256_and_si256(above, _mm256_srai_epi32(v, 31));
  return _mm256_max_epi32(_mm256_max_epi32(v, nan), _mm256_setzero_si256());
}

// Narrowing saturates: what is not 0 stays so.
template <Live kLive>
PITC_V3 inline uint32_t Bits32(const float* values) {
  const auto load = [values](int64_t i) PITC_V3 {
    return Mark<kLive>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + i)));
  };
  const __m256i a = _mm256_packs_epi32(load(0), load(8)),
                b = _mm256_packs_epi32(load(16), load(24));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
  const __m256i dead = _mm256_cmpeq_epi8(bytes, _mm256_setzero_si256());
  Prefetch(values);
  Prefetch(values + 16);
  return ~static_cast<uint32_t>(_mm256_movemask_epi8(dead));
}

template <Live kLive>
PITC_V3 void BitsV3(const float* row, int64_t n, uint64_t* bits) {
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    *bits++ = Bits32<kLive>(row + i) | static_cast<uint64_t>(Bits32<kLive>(row + i + 32)) << 32;
  }
  if (i < n) *bits = BitsOf<kLive>(row + i, n - i);
}

template <Live kLive>
PITC_V4 inline __m512i Mark(__m512i v) {
  if (kLive == Live::kNotZero) return _mm512_add_epi32(v, v);
  const __m512i above = _mm512_sub_epi32(v, _mm512_set1_epi32(static_cast<int>(kMinusInfinity)));
  const __m512i zero = _mm512_setzero_si512();
  const __m512i nan = _mm512_maskz_mov_epi32(_mm512_movepi32_mask(v), above);
  // With a mask, as GCC 12 warns of the operand that the plain form leaves undefined.
  return _mm512_maskz_max_epi32(0xffff, _mm512_maskz_max_epi32(0xffff, v, nan), zero);
}

// The same; only elements of `there` are read.
template <Live kLive>
PITC_V4 inline uint64_t Bits64(const float* values, uint64_t there) {
  const auto load = [=](int i) PITC_V4 {
    Prefetch(values + i);
    const auto mask = static_cast<__mmask16>(there >> i);
    return Mark<kLive>(_mm512_maskz_loadu_epi32(mask, values + i));
  };
  const __m512i a = _mm512_packs_epi32(load(0), load(16)),
                b = _mm512_packs_epi32(load(32), load(48));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_maskz_permutexvar_epi32(0xffff, order, _mm512_packs_epi16(a, b));
  return _mm512_test_epi8_mask(bytes, bytes);
}

template <Live kLive>
PITC_V4 void BitsV4(const float* row, int64_t n, uint64_t* bits) {
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) *bits++ = Bits64<kLive>(row + i, ~0ull);
  if (i < n) *bits = Bits64<kLive>(row + i, _bzhi_u64(~0ull, static_cast<unsigned>(n - i)));
}

#endif  // __x86_64__

template <Live kLive>
void Bits(CpuLevel level, const float* row, int64_t n, uint64_t* bits) {
#if defined(__x86_64__)
  if (level == CpuLevel::kV4) return BitsV4<kLive>(row, n, bits);
  if (level == CpuLevel::kV3) return BitsV3<kLive>(row, n, bits);
#endif
  static_cast<void>(level);
  BitsScalar<kLive>(row, n, bits);
}

}  // namespace

void LiveBits(CpuLevel level, Live live, const float* row, int64_t n, uint64_t* bits) {
  return live == Live::kNotZero ? Bits<Live::kNotZero>(level, row, n, bits)
                                : Bits<Live::kPositive>(level, row, n, bits);
}

}  // namespace pitc
