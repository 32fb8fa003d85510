#include "detect/mask.h"

#include <algorithm>

#include "detect/cpu_targets.h"
#include "detect/micro_tiles.h"
#include "detect/positions.h"

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

#if defined(__x86_64__)

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
  const int64_t words = BitWords(n);
  Positions(level, count, words)(bits, words, 0, positions, count);
  for (int64_t j = 0; j < count; ++j) rows[j] = first_row + positions[j];
}

}  // namespace pitc
