#include "mask.h"

#include <array>
#include <cstring>

#include "cpu_targets.h"

namespace pitc {
namespace {

int64_t CountScalar(const uint8_t* live, int64_t n) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += live[i] != 0;
  return count;
}

// Branch-free except at the end: every step writes, only the length depends on the data.
void FillScalar(const uint8_t* live, int64_t begin, int64_t n, int32_t first_row, int64_t at,
                int64_t count, int32_t* rows, int32_t* positions) {
  for (int64_t i = begin; i < n && at < count; ++i) {
    rows[at] = first_row + static_cast<int32_t>(i);
    positions[at] = static_cast<int32_t>(i);
    at += live[i] != 0;
  }
}

#if defined(__x86_64__)

// For each byte of mask bits, the positions of its set bits, then zeros.
constexpr auto kSetBits = [] {
  std::array<std::array<uint8_t, 8>, 256> table{};
  for (int mask = 0; mask < 256; ++mask) {
    int at = 0;
    for (int bit = 0; bit < 8; ++bit) {
      if (mask >> bit & 1) table[mask][at++] = static_cast<uint8_t>(bit);
    }
  }
  return table;
}();

PITC_V3 inline uint32_t LiveBits32(const uint8_t* live) {
  __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(live));
  __m256i dead = _mm256_cmpeq_epi8(bytes, _mm256_setzero_si256());
  return ~static_cast<uint32_t>(_mm256_movemask_epi8(dead));
}

PITC_V3 int64_t CountV3(const uint8_t* live, int64_t n) {
  int64_t count = 0, i = 0;
  for (; i + 32 <= n; i += 32) count += __builtin_popcount(LiveBits32(live + i));
  return count + CountScalar(live + i, n - i);
}

PITC_V3 void FillV3(const uint8_t* live, int64_t n, int32_t first_row, int64_t count, int32_t* rows,
                    int32_t* positions) {
  int64_t at = 0, i = 0;
  const __m256i first = _mm256_set1_epi32(first_row);
  // A step stores 8 entries, whatever it keeps: it must not pass the end of the list.
  for (; i + 32 <= n && at + 32 <= count; i += 32) {
    for (uint32_t bits = LiveBits32(live + i), base = 0; bits; bits >>= 8, base += 8) {
      uint32_t group = bits & 0xff;
      __m128i set = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kSetBits[group].data()));
      __m256i where = _mm256_set1_epi32(static_cast<int32_t>(i + base));
      where = _mm256_add_epi32(where, _mm256_cvtepu8_epi32(set));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(positions + at), where);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows + at), _mm256_add_epi32(where, first));
      at += __builtin_popcount(group);
    }
  }
  FillScalar(live, i, n, first_row, at, count, rows, positions);
}

PITC_V4 inline uint64_t LiveBits64(const uint8_t* live, int64_t n) {
  __mmask64 there = n >= 64 ? ~0ull : _bzhi_u64(~0ull, static_cast<unsigned>(n));
  __m512i bytes = _mm512_maskz_loadu_epi8(there, live);
  return _mm512_test_epi8_mask(bytes, bytes);
}

PITC_V4 int64_t CountV4(const uint8_t* live, int64_t n) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += 64) count += __builtin_popcountll(LiveBits64(live + i, n - i));
  return count;
}

PITC_V4 void FillV4(const uint8_t* live, int64_t n, int32_t first_row, int32_t* rows,
                    int32_t* positions) {
  const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i first = _mm512_set1_epi32(first_row);
  int64_t at = 0;
  for (int64_t i = 0; i < n; i += 64) {
    uint64_t bits = LiveBits64(live + i, n - i);
    for (int32_t base = static_cast<int32_t>(i); bits; bits >>= 16, base += 16) {
      auto group = static_cast<__mmask16>(bits);
      int kept = __builtin_popcount(group);
      // Compress in a register, then store the kept part: a compressing store is slow on some
      // processors.
      auto head = static_cast<__mmask16>((1u << kept) - 1);
      __m512i where = _mm512_add_epi32(_mm512_set1_epi32(base), iota);
      where = _mm512_maskz_compress_epi32(group, where);
      _mm512_mask_storeu_epi32(positions + at, head, where);
      _mm512_mask_storeu_epi32(rows + at, head, _mm512_add_epi32(where, first));
      at += kept;
    }
  }
}

#endif  // __x86_64__

}  // namespace

int64_t CountLive(CpuLevel level, const uint8_t* live, int64_t n) {
#if defined(__x86_64__)
  if (level == CpuLevel::kV4) return CountV4(live, n);
  if (level == CpuLevel::kV3) return CountV3(live, n);
#endif
  static_cast<void>(level);
  return CountScalar(live, n);
}

void FillLive(CpuLevel level, const uint8_t* live, int64_t n, int32_t first_row, int64_t count,
              int32_t* rows, int32_t* positions) {
#if defined(__x86_64__)
  if (level == CpuLevel::kV4) return FillV4(live, n, first_row, rows, positions);
  if (level == CpuLevel::kV3) return FillV3(live, n, first_row, count, rows, positions);
#endif
  static_cast<void>(level);
  FillScalar(live, 0, n, first_row, 0, count, rows, positions);
}

}  // namespace pitc
