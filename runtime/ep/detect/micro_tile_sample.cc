#include "detect/micro_tile_sample.h"

#include <algorithm>

namespace pitc {
namespace {

constexpr int64_t kSide = 64;
constexpr uint64_t kGoldenShare = 0x9e3779b9;  // of 2^32: its multiples spread evenly

// Asks for all of a square, [height, width] with `step` elements between rows: nothing else does,
// its pieces are short.
void Ask(const float* x, int64_t height, int64_t width, int64_t step) {
  for (int64_t i = 0; i < height; ++i) {
    for (int64_t j = 0; j < width; j += 16) __builtin_prefetch(x + i * step + j);
  }
}

// Rows first.. and columns begin.. of A, at most a square: one word of bits per row.
MicroTileCounts CountSquare(CpuLevel level, const StoredMatrix& a, int64_t first, int64_t begin) {
  const int64_t height = std::min(kSide, a.count - first), width = std::min(kSide, a.k - begin);
  uint64_t bits[kSide];
  StoredMatrix part = a.Part(first, height);
  part.k = width;
  if (a.columns) {
    part.a += begin * a.columns;
    if (a.factor) part.factor += begin * a.columns;
    Ask(part.a, width, height, a.columns);
    if (a.factor) Ask(part.factor, width, height, a.columns);
    MatrixBits(level, Live::kNotZero, part, {0, height}, {0, width}, bits);
  } else {
    part.rows = nullptr;
    Ask(a.Row(a.a, first) + begin, height, width, a.k);
    if (a.factor) Ask(a.Row(a.factor, first) + begin, height, width, a.k);
    for (int64_t r = 0; r < height; ++r) {
      part.a = a.Row(a.a, first + r) + begin;
      if (a.factor) part.factor = a.Row(a.factor, first + r) + begin;
      MatrixBits(level, Live::kNotZero, part, {0, 1}, {0, width}, bits + r);
    }
  }
  return CountMicroTiles(level, bits, height, width);
}

}  // namespace

MicroTileCounts SampleMicroTiles(CpuLevel level, const StoredMatrix& a, int64_t share) {
  const int64_t groups = (a.count + kSide - 1) / kSide, words = BitWords(a.k);
  const int64_t squares = std::max<int64_t>(1, groups * words / share);
  MicroTileCounts counts;
  int64_t seen = 0;
  for (int64_t s = 0; s < squares; ++s) {
    const int64_t first = s * groups / squares * kSide;
    const auto place = static_cast<uint32_t>(static_cast<uint64_t>(s) * kGoldenShare);
    const int64_t begin = static_cast<int64_t>(place * static_cast<uint64_t>(words) >> 32) * kSide;
    counts += CountSquare(level, a, first, begin);
    seen += std::min(kSide, a.count - first) * std::min(kSide, a.k - begin);
  }
  const double all = static_cast<double>(a.count) * static_cast<double>(a.k);
  const auto scale = [&](int64_t* n) {
    *n = static_cast<int64_t>(static_cast<double>(*n) * all / static_cast<double>(seen));
  };
  scale(&counts.elements);
  for (int64_t& n : counts.strips) scale(&n);
  for (int64_t& n : counts.segments) scale(&n);
  return counts;
}

}  // namespace pitc
