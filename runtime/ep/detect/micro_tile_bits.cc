// Bits of what is not zero.
#include <algorithm>
#include <cstring>

#include "detect/cpu_targets.h"
#include "detect/micro_tiles.h"

namespace pitc {
namespace {

constexpr uint32_t kMinusInfinity = 0xff800000;  // above it, as an unsigned number: NaN

// Integers decide: a comparison of floats would depend on how the thread treats denormals.
template <Live kLive>
uint64_t BitsOf(const float* values, const float* factor, int64_t n) {
  uint64_t word = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float value = factor ? values[i] * factor[i] : values[i];
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const bool live = kLive == Live::kNotZero
                          ? bits << 1 != 0
                          : static_cast<int32_t>(bits) > 0 || bits > kMinusInfinity;
    word |= static_cast<uint64_t>(live) << i;
  }
  return word;
}

template <Live kLive>
void BitsScalar(const float* row, const float* factor, int64_t n, uint64_t* bits) {
  for (int64_t i = 0; i < n; i += 64)
    *bits++ = BitsOf<kLive>(row + i, factor ? factor + i : nullptr, std::min<int64_t>(64, n - i));
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
PITC_V3 inline uint32_t Bits32(const float* values, const float* factor) {
  const auto load = [=](int64_t i) PITC_V3 {
    __m256 x = _mm256_loadu_ps(values + i);
    if (factor) x = _mm256_mul_ps(x, _mm256_loadu_ps(factor + i));
    return Mark<kLive>(_mm256_castps_si256(x));
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
PITC_V3 void BitsV3(const float* row, const float* factor, int64_t n, uint64_t* bits) {
  int64_t i = 0;
  for (; i + 64 <= n; i += 64, row += 64) {
    *bits = Bits32<kLive>(row, factor);
    *bits++ |= static_cast<uint64_t>(Bits32<kLive>(row + 32, factor ? factor + 32 : nullptr)) << 32;
    if (factor) factor += 64;
  }
  if (i < n) *bits = BitsOf<kLive>(row, factor, n - i);
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
PITC_V4 inline uint64_t Bits64(const float* values, const float* factor, uint64_t there) {
  const auto load = [=](int i) PITC_V4 {
    Prefetch(values + i);
    const auto mask = static_cast<__mmask16>(there >> i);
    __m512 x = _mm512_maskz_loadu_ps(mask, values + i);
    if (factor) x = _mm512_maskz_mul_ps(mask, x, _mm512_maskz_loadu_ps(mask, factor + i));
    return Mark<kLive>(_mm512_castps_si512(x));
  };
  const __m512i a = _mm512_packs_epi32(load(0), load(16)),
                b = _mm512_packs_epi32(load(32), load(48));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_maskz_permutexvar_epi32(0xffff, order, _mm512_packs_epi16(a, b));
  return _mm512_test_epi8_mask(bytes, bytes);
}

template <Live kLive>
PITC_V4 void BitsV4(const float* row, const float* factor, int64_t n, uint64_t* bits) {
  int64_t i = 0;
  for (; i + 64 <= n; i += 64, row += 64) {
    *bits++ = Bits64<kLive>(row, factor, ~0ull);
    if (factor) factor += 64;
  }
  if (i < n) *bits = Bits64<kLive>(row, factor, _bzhi_u64(~0ull, static_cast<unsigned>(n - i)));
}

#endif  // __x86_64__

template <Live kLive>
void Bits(CpuLevel level, const float* row, const float* factor, int64_t n, uint64_t* bits) {
#if defined(__x86_64__)
  if (level == CpuLevel::kV4) return BitsV4<kLive>(row, factor, n, bits);
  if (level == CpuLevel::kV3) return BitsV3<kLive>(row, factor, n, bits);
#endif
  static_cast<void>(level);
  BitsScalar<kLive>(row, factor, n, bits);
}

void ProductBits(CpuLevel level, Live live, const float* row, const float* factor, int64_t n,
                 uint64_t* bits) {
  return live == Live::kNotZero ? Bits<Live::kNotZero>(level, row, factor, n, bits)
                                : Bits<Live::kPositive>(level, row, factor, n, bits);
}

// Bit j of word i becomes bit i of word j: at each step, off-diagonal quarters change places.
void TransposeBits(uint64_t* words) {
  uint64_t low = 0x00000000ffffffff;
  for (int half = 32; half > 0; half /= 2, low ^= low << half) {
    for (int first = 0; first < 64; first += 2 * half) {
      for (int i = first; i < first + half; ++i) {
        const uint64_t swapped = (words[i] >> half ^ words[i + half]) & low;
        words[i] ^= swapped << half;
        words[i + half] ^= swapped;
      }
    }
  }
}

// A stored by columns: long pieces of its columns are read, and their bits transposed in squares.
void ColumnBits(CpuLevel level, Live live, const StoredMatrix& a, const Range& rows,
                const Range& ks, uint64_t* bits) {
  constexpr int64_t kPiece = 2048, kPieceWords = kPiece / 64;
  const int64_t words = BitWords(a.k);
  for (int64_t k = ks.begin; k < ks.end; k += 64) {
    const int64_t height = std::min<int64_t>(64, ks.end - k);
    for (int64_t r = rows.begin; r < rows.end; r += kPiece) {
      const int64_t width = std::min(kPiece, rows.end - r);
      uint64_t found[64 * kPieceWords];
      for (int64_t i = 0; i < height; ++i) {
        const int64_t at = (k + i) * a.columns + r;
        ProductBits(level, live, a.a + at, a.factor ? a.factor + at : nullptr, width,
                    found + i * kPieceWords);
      }
      for (int64_t p = 0; p < BitWords(width); ++p) {
        uint64_t square[64] = {};
        for (int64_t i = 0; i < height; ++i) square[i] = found[i * kPieceWords + p];
        TransposeBits(square);
        uint64_t* const to = bits + (r - rows.begin + 64 * p) * words + k / 64;
        for (int64_t i = 0; i < std::min<int64_t>(64, width - 64 * p); ++i)
          to[i * words] = square[i];
      }
    }
  }
}

}  // namespace

void LiveBits(CpuLevel level, Live live, const float* row, int64_t n, uint64_t* bits) {
  ProductBits(level, live, row, nullptr, n, bits);
}

StoredMatrix StoredMatrix::Part(int64_t first, int64_t n) const {
  StoredMatrix part = *this;
  const int64_t moved = columns ? first : first * k;
  part.count = n;
  if (rows) {
    part.rows += first;
  } else {
    part.a += moved;
    if (factor) part.factor += moved;
  }
  return part;
}

void MatrixBits(CpuLevel level, Live live, const StoredMatrix& a, const Range& rows,
                const Range& ks, uint64_t* bits) {
  if (a.columns) return ColumnBits(level, live, a, rows, ks, bits);
  bits += ks.begin / 64;
  for (int64_t r = rows.begin; r < rows.end; ++r, bits += BitWords(a.k)) {
    const float* const factor = a.factor ? a.Row(a.factor, r) + ks.begin : nullptr;
    ProductBits(level, live, a.Row(a.a, r) + ks.begin, factor, ks.end - ks.begin, bits);
  }
}

}  // namespace pitc
