// Where bits are set, and what stands there.
#include "simd/level.h"

namespace pitc::PITC_LEVEL {
namespace {

// That of the first set bit; anything for no bit.
int32_t Position(int64_t first, uint64_t word) {
  const int bit = word ? __builtin_ctzll(word) : 64;
  return static_cast<int32_t>(static_cast<uint32_t>(first) + static_cast<uint32_t>(bit));
}

int32_t* AddPositions(const uint64_t* words, int64_t n, int64_t first, int32_t* to) {
  for (int64_t w = 0; w < n; ++w, first += 64) {
    for (uint64_t word = words[w]; word; word &= word - 1) *to++ = Position(first, word);
  }
  return to;
}

}  // namespace

// Four at a time, wanted or not: the next word overwrites what is too much, and few branches depend
// on the data.
int64_t FewPositions(const uint64_t* words, int64_t n, int64_t first, int32_t* to, int64_t room) {
  int64_t at = 0, w = 0;
  for (; w < n && at + 64 <= room; ++w, first += 64) {
    uint64_t word = words[w];
    int32_t* four = to + at;
    at += __builtin_popcountll(word);
    do {
      for (int i = 0; i < 4; ++i, word &= word - 1) four[i] = Position(first, word);
      four += 4;
    } while (word);
  }
  return AddPositions(words + w, n - w, first, to + at) - to;
}

#if defined(__AVX512BW__)

// No branch depends on the data.
int64_t ManyPositions(const uint64_t* words, int64_t n, int64_t first, int32_t* to, int64_t room) {
  const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  int64_t at = 0, w = 0;
  for (; w < n && at + 64 <= room; ++w) {
    uint64_t word = words[w];
    for (int part = 0; part < 4; ++part, word >>= 16, first += 16) {
      const auto group = static_cast<__mmask16>(word);
      const __m512i all = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int32_t>(first)), iota);
      _mm512_storeu_si512(to + at, _mm512_maskz_compress_epi32(group, all));
      at += __builtin_popcount(group);
    }
  }
  return AddPositions(words + w, n - w, first, to + at) - to;
}

#else

int64_t ManyPositions(const uint64_t* words, int64_t n, int64_t first, int32_t* to, int64_t room) {
  return FewPositions(words, n, first, to, room);
}

#endif

#if defined(__AVX2__)

namespace {

// For each byte, which of its bits are set, a byte each; zeros behind them.
struct BitTable {
  uint64_t places[256] = {};

  constexpr BitTable() {
    for (unsigned byte = 0; byte < 256; ++byte) {
      int at = 0;
      for (uint64_t bit = 0; bit < 8; ++bit) {
        if (byte >> bit & 1) places[byte] |= bit << 8 * at++;
      }
    }
  }
};
constexpr BitTable kBitTable;

}  // namespace

#endif

int64_t Pack(const uint64_t* words, int64_t n, int64_t first, const float* row, int64_t k,
             int32_t* ks, float* values, int64_t room) {
  int64_t at = 0, w = 0;
#if defined(__AVX2__)
  // No branch depends on the data.
  for (; w < n && at + 64 <= room && first + 64 <= k; ++w) {
    uint64_t word = words[w];
    for (int part = 0; part < 8; ++part, word >>= 8, first += 8) {
      const unsigned byte = word & 0xff;
      const auto* packed = reinterpret_cast<const __m128i*>(kBitTable.places + byte);
      const __m256i places = _mm256_cvtepu8_epi32(_mm_loadl_epi64(packed));
      const __m256i all = _mm256_add_epi32(places, _mm256_set1_epi32(static_cast<int32_t>(first)));
      const __m256 x = _mm256_loadu_ps(row + first);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(ks + at), all);
      _mm256_storeu_ps(values + at, _mm256_permutevar8x32_ps(x, places));
      at += __builtin_popcount(byte);
    }
  }
#endif
  static_cast<void>(k), static_cast<void>(room);
  const int64_t count = AddPositions(words + w, n - w, first, ks + at) - ks;
  for (int64_t z = at; z < count; ++z) __builtin_memcpy(values + z, row + ks[z], sizeof *row);
  return count;
}

}  // namespace pitc::PITC_LEVEL
