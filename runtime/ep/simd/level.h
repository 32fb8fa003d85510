// The vectors of one CPU level, and what the files of this room make of them.
//
// Those files are compiled once for each level, into the namespace PITC_LEVEL. They take no inline
// function or template from elsewhere: of such a one the linker keeps a single copy, which might be
// that of a level that this machine has not.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "simd/primitives.h"

namespace pitc::PITC_LEVEL {

void LiveBits(Live live, const float* row, int64_t n, uint64_t* bits);
int64_t MaskBits(const uint8_t* bytes, int64_t n, uint64_t* bits);
void Round(Live live, const float* row, int64_t n, uint16_t* to);
void CountMicroTiles(const uint64_t* bits, int64_t rows, int64_t k, uint64_t* columns,
                     MicroTileCounts* counts);
int64_t CountBits(const uint64_t* words, int64_t n);
Positions FewPositions, ManyPositions;
int64_t Pack(const uint64_t* words, int64_t n, int64_t first, const float* row, int64_t k,
             int32_t* ks, float* values, int64_t room);

namespace {

#if defined(__AVX512BW__)
constexpr CpuLevel kLevel = CpuLevel::kV4;
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr CpuLevel kLevel = CpuLevel::kV3;
constexpr int kBytes = 32;
#else
#if defined(__aarch64__)
constexpr CpuLevel kLevel = CpuLevel::kNeon;
#else
constexpr CpuLevel kLevel = CpuLevel::kBaseline;
#endif
constexpr int kBytes = 16;
#endif

typedef int8_t Bytes __attribute__((vector_size(kBytes)));
typedef int32_t Ints __attribute__((vector_size(kBytes)));
typedef uint32_t Words32 __attribute__((vector_size(kBytes)));

template <class To, class From>
inline To Load(const From* from) {
  To to;
  __builtin_memcpy(&to, from, sizeof to);
  return to;
}

inline int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

// The lanes of four vectors as bytes, in order; what is not 0 stays so.
inline Bytes Narrowed(const Ints& a, const Ints& b, const Ints& c, const Ints& d) {
#if defined(__AVX512BW__)
  const auto pack = [](const Ints& x, const Ints& y) {
    return _mm512_packs_epi32(reinterpret_cast<__m512i>(x), reinterpret_cast<__m512i>(y));
  };
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_packs_epi16(pack(a, b), pack(c, d));
  // With a mask, as GCC 12 warns of the operand that the plain form leaves undefined.
  return reinterpret_cast<Bytes>(_mm512_maskz_permutexvar_epi32(0xffff, order, bytes));
#elif defined(__AVX2__)
  const auto pack = [](const Ints& x, const Ints& y) {
    return _mm256_packs_epi32(reinterpret_cast<__m256i>(x), reinterpret_cast<__m256i>(y));
  };
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_packs_epi16(pack(a, b), pack(c, d));
  return reinterpret_cast<Bytes>(_mm256_permutevar8x32_epi32(bytes, order));
#elif defined(__aarch64__)
  const auto pack = [](const Ints& x, const Ints& y) {
    return vcombine_s16(vqmovn_s32(reinterpret_cast<int32x4_t>(x)),
                        vqmovn_s32(reinterpret_cast<int32x4_t>(y)));
  };
  return reinterpret_cast<Bytes>(vcombine_s8(vqmovn_s16(pack(a, b)), vqmovn_s16(pack(c, d))));
#else
  Bytes to;
  for (int i = 0; i < 4; ++i) {
    to[i] = a[i] != 0, to[i + 4] = b[i] != 0, to[i + 8] = c[i] != 0, to[i + 12] = d[i] != 0;
  }
  return to;
#endif
}

// Bit i: byte i is not 0.
inline uint64_t NotZero(const Bytes& bytes) {
#if defined(__AVX512BW__)
  const auto v = reinterpret_cast<__m512i>(bytes);
  return _mm512_test_epi8_mask(v, v);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_epi8(reinterpret_cast<__m256i>(bytes != 0)));
#elif defined(__x86_64__)
  return static_cast<uint64_t>(_mm_movemask_epi8(reinterpret_cast<__m128i>(bytes != 0)));
#elif defined(__aarch64__)
  constexpr Bytes kBit = {1, 2, 4, 8, 16, 32, 64, -128, 1, 2, 4, 8, 16, 32, 64, -128};
  const auto set = reinterpret_cast<uint8x16_t>((bytes != 0) & kBit);
  return static_cast<uint64_t>(vaddv_u8(vget_low_u8(set))) |
         static_cast<uint64_t>(vaddv_u8(vget_high_u8(set))) << 8;
#else
  uint64_t word = 0;
  for (int i = 0; i < kBytes; ++i) word |= static_cast<uint64_t>(bytes[i] != 0) << i;
  return word;
#endif
}

}  // namespace
}  // namespace pitc::PITC_LEVEL
