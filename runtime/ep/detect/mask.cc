#include "detect/mask.h"

#include <algorithm>
#include <array>

#include "detect/cpu_targets.h"

namespace pitc {
namespace {

int64_t ReadScalar(const uint8_t* live, int64_t n, uint64_t* bits) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += 64) {
    uint64_t word = 0;
    for (int64_t j = 0; j < std::min<int64_t>(64, n - i); ++j)
      word |= static_cast<uint64_t>(live[i + j] != 0) << j;
    *bits++ = word;
    count += __builtin_popcountll(word);
  }
  return count;
}

// From word `begin` on, and entry `at`.
void FillScalar(const uint64_t* bits, int64_t begin, int64_t n, int32_t first_row, int64_t at,
                int32_t* rows, int32_t* positions) {
  for (int64_t i = begin * 64; i < n; i += 64) {
    for (uint64_t word = bits[i / 64]; word; word &= word - 1, ++at) {
      const auto position = static_cast<int32_t>(i + __builtin_ctzll(word));
      rows[at] = first_row + position;
      positions[at] = position;
    }
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

PITC_V3 int64_t ReadV3(const uint8_t* live, int64_t n, uint64_t* bits) {
  int64_t count = 0, i = 0;
  for (; i + 64 <= n; i += 64) {
    const uint64_t low = LiveBits32(live + i), high = LiveBits32(live + i + 32);
    *bits++ = low | high << 32;
    count += _mm_popcnt_u64(low | high << 32);
  }
  return count + ReadScalar(live + i, n - i, bits);
}

PITC_V3 void FillV3(const uint64_t* bits, int64_t n, int32_t first_row, int64_t count,
                    int32_t* rows, int32_t* positions) {
  int64_t at = 0, i = 0;
  const __m256i first = _mm256_set1_epi32(first_row);
  // A step stores 8 entries, whatever it keeps: it must not pass the end of the list.
  for (; i < n && at + 64 <= count; i += 64) {
    uint32_t base = static_cast<uint32_t>(i);
    for (uint64_t word = bits[i / 64]; word; word >>= 8, base += 8) {
      const auto group = static_cast<uint32_t>(word & 0xff);
      __m128i set = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kSetBits[group].data()));
      __m256i where = _mm256_set1_epi32(static_cast<int32_t>(base));
      where = _mm256_add_epi32(where, _mm256_cvtepu8_epi32(set));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(positions + at), where);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows + at), _mm256_add_epi32(where, first));
      at += __builtin_popcount(group);
    }
  }
  FillScalar(bits, i / 64, n, first_row, at, rows, positions);
}

PITC_V4 inline uint64_t LiveBits64(const uint8_t* live, int64_t n) {
  __mmask64 there = n >= 64 ? ~0ull : _bzhi_u64(~0ull, static_cast<unsigned>(n));
  __m512i bytes = _mm512_maskz_loadu_epi8(there, live);
  return _mm512_test_epi8_mask(bytes, bytes);
}

PITC_V4 int64_t ReadV4(const uint8_t* live, int64_t n, uint64_t* bits) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += 64) {
    *bits = LiveBits64(live + i, n - i);
    count += _mm_popcnt_u64(*bits++);
  }
  return count;
}

PITC_V4 void FillV4(const uint64_t* bits, int64_t n, int32_t first_row, int32_t* rows,
                    int32_t* positions) {
  const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i first = _mm512_set1_epi32(first_row);
  int64_t at = 0;
  for (int64_t i = 0; i < n; i += 64) {
    uint64_t word = bits[i / 64];
    for (int32_t base = static_cast<int32_t>(i); word; word >>= 16, base += 16) {
      auto group = static_cast<__mmask16>(word);
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

int64_t ReadMask(CpuLevel level, const uint8_t* live, int64_t n, uint64_t* bits) {
#if defined(__x86_64__)
  if (level == CpuLevel::kV4) return ReadV4(live, n, bits);
  if (level == CpuLevel::kV3) return ReadV3(live, n, bits);
#endif
  static_cast<void>(level);
  return ReadScalar(live, n, bits);
}

void FillLive(CpuLevel level, const uint64_t* bits, int64_t n, int32_t first_row, int64_t count,
              int32_t* rows, int32_t* positions) {
#if defined(__x86_64__)
  if (level == CpuLevel::kV4) return FillV4(bits, n, first_row, rows, positions);
  if (level == CpuLevel::kV3) return FillV3(bits, n, first_row, count, rows, positions);
#endif
  static_cast<void>(level);
  static_cast<void>(count);
  FillScalar(bits, 0, n, first_row, 0, rows, positions);
}

}  // namespace pitc
