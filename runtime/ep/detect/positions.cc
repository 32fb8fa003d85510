#include "detect/positions.h"

#include "detect/cpu_targets.h"

namespace pitc {
namespace {

int64_t Scalar(const uint64_t* words, int64_t n, uint32_t k, int32_t* ks) {
  int64_t at = 0;
  for (int64_t w = 0; w < n; ++w, k += 64) {
    for (uint64_t word = words[w]; word; word &= word - 1) {
      ks[at++] = static_cast<int32_t>(k + static_cast<uint32_t>(__builtin_ctzll(word)));
    }
  }
  return at;
}

#if defined(__x86_64__)

PITC_V3 int64_t PopulationV3(const uint64_t* words, int64_t n) {
  int64_t count = 0;
  for (int64_t w = 0; w < n; ++w) count += static_cast<int64_t>(_mm_popcnt_u64(words[w]));
  return count;
}

// Four at a time, wanted or not: the next word overwrites what is too much, and few branches depend
// on the data. For some bits per word.
PITC_V3 int64_t V3(const uint64_t* words, int64_t n, uint32_t k, int32_t* ks, int64_t room) {
  int64_t at = 0, w = 0;
  for (; w < n && at + 64 <= room; ++w, k += 64) {
    uint64_t word = words[w];
    int32_t* to = ks + at;
    at += static_cast<int64_t>(_mm_popcnt_u64(word));
    do {
      for (int i = 0; i < 4; ++i, word = _blsr_u64(word)) {
        to[i] = static_cast<int32_t>(k + static_cast<uint32_t>(_tzcnt_u64(word)));
      }
      to += 4;
    } while (word);
  }
  return at + Scalar(words + w, n - w, k, ks + at);
}

// No branch depends on the data. For many bits per word.
PITC_V4 int64_t V4(const uint64_t* words, int64_t n, uint32_t k, int32_t* ks, int64_t room) {
  const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  int64_t at = 0, w = 0;
  for (; w < n && at + 64 <= room; ++w) {
    uint64_t word = words[w];
    for (int part = 0; part < 4; ++part, word >>= 16, k += 16) {
      const auto group = static_cast<__mmask16>(word);
      const __m512i all = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int32_t>(k)), iota);
      _mm512_storeu_si512(ks + at, _mm512_maskz_compress_epi32(group, all));
      at += _mm_popcnt_u32(group);
    }
  }
  return at + Scalar(words + w, n - w, k, ks + at);
}

#endif  // __x86_64__

}  // namespace

Positions::Positions(CpuLevel level, int64_t entries, int64_t words)
    : level_(level == CpuLevel::kV4 && entries <= 4 * words ? CpuLevel::kV3 : level) {}

int64_t Positions::operator()(const uint64_t* words, int64_t n, int64_t first, int32_t* to,
                              int64_t room) const {
  const auto k = static_cast<uint32_t>(first);
#if defined(__x86_64__)
  if (level_ == CpuLevel::kV4) return V4(words, n, k, to, room);
  if (level_ == CpuLevel::kV3) return V3(words, n, k, to, room);
#endif
  static_cast<void>(room);
  return Scalar(words, n, k, to);
}

int64_t Positions::Count(const uint64_t* words, int64_t n) const {
#if defined(__x86_64__)
  if (level_ != CpuLevel::kBaseline) return PopulationV3(words, n);
#endif
  int64_t count = 0;
  for (int64_t w = 0; w < n; ++w) count += __builtin_popcountll(words[w]);
  return count;
}

}  // namespace pitc
