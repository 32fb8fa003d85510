// Lists of live micro-tiles from bits.
#include <algorithm>
#include <cstring>

#include "detect/micro_tiles.h"

namespace pitc {
namespace {

constexpr int64_t kSparse = 32;  // fewer live elements than one in so many are seldom neighbours
constexpr int64_t kAhead = 64;   // entries of a list, of which there are too many to be foreseen
constexpr double kPackedPerWord = 1.5;  // live elements; with more, all are read, in order

// Copies A[r + i, ks[z]] to values[z * stride + i], for all i below kRows. Without __restrict it
// takes a quarter longer.
template <int kRows>
inline void Gather(const StoredMatrix& a, int64_t r, const int32_t* ks, int64_t n, int64_t stride,
                   float* __restrict values) {
  const float* rows[kRows];
  for (int i = 0; i < kRows; ++i) rows[i] = a.Row(r + i);
  for (int64_t z = 0; z < n; ++z) {
    float found[kRows];
    for (int i = 0; i < kRows; ++i) found[i] = rows[i][ks[z]];
    memcpy(values + z * stride, found, sizeof found);
  }
}

// Asks for the lines of A[r, ks[z]].
void Ask(const StoredMatrix& a, int64_t r, const int32_t* ks, int64_t n) {
  const float* const row = a.Row(r);
  for (int64_t z = 0; z < n; ++z) __builtin_prefetch(row + ks[z]);
}

// Calls visit(q) for each segment q of `width` bits that has a set bit, in order.
template <class Visit>
void ForSegments(const uint64_t* words, int64_t n, int64_t width, const Visit& visit) {
  const uint64_t segment = ~0ull >> (64 - width);
  for (int64_t w = 0; w < n; ++w) {
    for (uint64_t word = words[w]; word;) {
      const int64_t in_word = __builtin_ctzll(word) / width;
      visit(w * (64 / width) + in_word);
      word &= ~(segment << in_word * width);
    }
  }
}

// Row by row; many elements are live, so that all are read.
void PackFromRows(const Primitives& simd, const DetectedRows& rows, int64_t step,
                  const int32_t* starts, float* values, int32_t* ks) {
  const StoredMatrix& a = rows.matrix;
  const int64_t t = rows.Count(), words = BitWords(a.k);
  for (int64_t r = 0; r < t; ++r) {
    const int32_t* list = starts;  // those of a block
    for (int64_t w = 0; w < words; w += step, list += t) {
      const int64_t at = list[r], n = std::min(step, words - w);
      __builtin_prefetch(ks + at + kAhead, 1);
      __builtin_prefetch(values + at + kAhead, 1);
      simd.pack(rows.Bits(r) + w, n, w * 64, a.Row(r), a.k, ks + at, values + at, list[t] - at);
    }
  }
}

// Row by row; few elements stand far apart: their lines are asked for one row ahead.
void FillFromRows(Positions* positions, const DetectedRows& rows, int64_t step, int64_t entries,
                  const int32_t* starts, float* values, int32_t* ks) {
  const int64_t words = BitWords(rows.K()), t = rows.Count();
  const bool ask = entries < t * words * 64 / kSparse;
  for (int64_t r = 0; r <= t; ++r) {
    const int32_t* list = starts;  // those of a block
    for (int64_t w = 0; w < words && r < t; w += step, list += t) {
      const int64_t n = std::min(step, words - w), at = list[r];
      // Behind a list that of the next row is still to be made, but not behind the last one.
      const int64_t found = positions(rows.Bits(r) + w, n, w * 64, ks + at, list[t] - at);
      if (ask) Ask(rows.matrix, r, ks + at, found);
    }
    list = starts;
    for (int64_t w = 0; w < words && r > 0; w += step, list += t) {
      const int64_t at = list[r - 1];
      Gather<1>(rows.matrix, r - 1, ks + at, list[r] - at, 1, values + at);
    }
  }
}

// Numbers below 0, which stand beside live ones, become 0; NaN stays.
void Relu(float* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = values[i] < 0 ? 0.0f : values[i];
}

// values[n, group] = columns ks[0..n) of rows first..first + height, 0 below these.
void GatherTiles(const DetectedRows& rows, int64_t first, int64_t height, const int32_t* ks,
                 int64_t n, int64_t group, float* values) {
  const StoredMatrix& a = rows.matrix;
  constexpr int64_t kEntries = 128;  // at a time: they stay in the first-level cache
  for (int64_t z = 0; z < n; z += kEntries) {
    const int64_t here = std::min(kEntries, n - z);
    float* const to = values + z * group;
    int64_t i = 0;
    for (; i + 4 <= height; i += 4) Gather<4>(a, first + i, ks + z, here, group, to + i);
    for (; i < height; ++i) Gather<1>(a, first + i, ks + z, here, group, to + i);
    for (int64_t y = 0; y < here && height < group; ++y)
      std::fill(to + y * group + height, to + (y + 1) * group, 0.0f);
    if (rows.live == Live::kPositive) Relu(to, here * group);
  }
}

}  // namespace

void FillRowLists(const Primitives& simd, const DetectedRows& rows, int64_t k_block,
                  int64_t entries, float* values, int32_t* ks, int32_t* starts) {
  const int64_t words = BitWords(rows.K()), step = k_block / 64, t = rows.Count();
  // Lists stand block by block, but A may be read row by row: so they are counted first.
  int32_t* end = starts;
  *end++ = 0;
  for (int64_t w = 0; w < words; w += step) {
    for (int64_t r = 0; r < t; ++r, ++end) {
      const int64_t n = std::min(step, words - w);
      *end = end[-1] + static_cast<int32_t>(simd.count_bits(rows.Bits(r) + w, n));
    }
  }
  if (static_cast<double>(entries) > kPackedPerWord * static_cast<double>(t * words))
    return PackFromRows(simd, rows, step, starts, values, ks);
  FillFromRows(simd.PositionsFor(entries, t * words), rows, step, entries, starts, values, ks);
}

void FillTileLists(const Primitives& simd, const DetectedRows& rows, int64_t group, int64_t entries,
                   float* values, int32_t* ks, int32_t* starts) {
  constexpr int64_t kWords = 64;  // at a time
  const int64_t words = BitWords(rows.K()), t = rows.Count();
  Positions* const positions = simd.PositionsFor(entries, (t + group - 1) / group * words);
  int64_t at = 0;
  *starts++ = 0;
  for (int64_t first = 0; first < t; first += group) {
    const int64_t height = std::min(group, t - first), begin = at;
    for (int64_t w = 0; w < words; w += kWords) {
      const int64_t n = std::min(kWords, words - w);
      uint64_t any[kWords] = {};
      for (int64_t r = first; r < first + height; ++r) {
        for (int64_t i = 0; i < n; ++i) any[i] |= rows.Bits(r)[w + i];
      }
      at += positions(any, n, w * 64, ks + at, entries - at);
    }
    GatherTiles(rows, first, height, ks + begin, at - begin, group, values + begin * group);
    *starts++ = static_cast<int32_t>(at);
  }
}

void FillBlockLists(const DetectedRows& rows, int64_t width, float* values, int32_t* live,
                    int32_t* starts) {
  const int64_t words = BitWords(rows.K()), blocks = (rows.K() + width - 1) / width;
  std::fill(starts, starts + blocks + 1, 0);
  for (int64_t r = 0; r < rows.Count(); ++r) {
    ForSegments(rows.Bits(r), words, width, [&](int64_t q) { ++starts[q + 1]; });
  }
  // starts[q + 1] becomes the begin of block q, and moves on to its end while the block is filled.
  int32_t begin = 0;
  for (int64_t q = 0; q < blocks; ++q) {
    const int32_t count = starts[q + 1];
    starts[q + 1] = begin;
    begin += count;
  }
  const StoredMatrix& a = rows.matrix;
  for (int64_t r = 0; r < rows.Count(); ++r) {
    const float* const row = a.Row(r);
    ForSegments(rows.Bits(r), words, width, [&](int64_t q) {
      const int64_t z = starts[q + 1]++, k = q * width, n = std::min(width, a.k - k);
      live[z] = static_cast<int32_t>(r);
      std::copy_n(row + k, n, values + z * width);
      if (rows.live == Live::kPositive) Relu(values + z * width, n);
      std::fill(values + z * width + n, values + (z + 1) * width, 0.0f);
    });
  }
}

}  // namespace pitc
