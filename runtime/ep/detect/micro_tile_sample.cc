#include <algorithm>

#include "detect/micro_tiles.h"

namespace pitc {
namespace {

constexpr int64_t kSide = 64;
constexpr uint64_t kGoldenShare = 0x9e3779b9;  // of 2^32: its multiples spread evenly

// Counts rows first.. and columns begin.. of A, at most a square: one word of bits per row.
int64_t CountSquare(const Primitives& simd, const StoredMatrix& a, int64_t first, int64_t begin,
                    MicroTileCounts* counts) {
  const int64_t height = std::min(kSide, a.count - first), width = std::min(kSide, a.k - begin);
  const bool turned = a.columns > 0;
  for (const float* of : {a.a, a.factor}) {  // nothing else asks for them, they are short
    for (int64_t i = 0; of && i < (turned ? width : height); ++i) {
      const float* const at =
          turned ? of + (begin + i) * a.columns + first : a.Row(of, first + i) + begin;
      for (int64_t j = 0; j < (turned ? height : width); j += 16) __builtin_prefetch(at + j);
    }
  }
  uint64_t bits[kSide] = {};
  const Range rows{first, first + height}, ks{begin, begin + width};
  MatrixBits(simd, Live::kNotZero, a, rows, ks, bits, 1);
  simd.count_micro_tiles(bits, height, width, nullptr, counts);
  return height * width;
}

}  // namespace

MicroTileCounts SampleMicroTiles(const Primitives& simd, const StoredMatrix& a, int64_t share) {
  const int64_t groups = (a.count + kSide - 1) / kSide, words = BitWords(a.k);
  const int64_t squares = std::max<int64_t>(1, groups * words / share);
  MicroTileCounts counts;
  int64_t seen = 0;
  for (int64_t s = 0; s < squares; ++s) {
    const int64_t first = s * groups / squares * kSide;
    const auto place = static_cast<uint32_t>(static_cast<uint64_t>(s) * kGoldenShare);
    const int64_t begin = static_cast<int64_t>(place * static_cast<uint64_t>(words) >> 32) * kSide;
    seen += CountSquare(simd, a, first, begin, &counts);
  }
  counts.Scale(static_cast<double>(a.count) * static_cast<double>(a.k), static_cast<double>(seen));
  return counts;
}

}  // namespace pitc
