// Lists of live micro-tiles of a matrix that is stored by columns; see micro_tiles.h for what they
// hold. Starts are made already.
#pragma once

#include "detect/micro_tiles.h"

namespace pitc {

// Lists of rows; the begins of all lists are starts[q * count + r].
void FillRowsFromColumns(const DetectedRows& rows, int64_t k_block, const int32_t* starts,
                         float* values, int32_t* ks);

// values[n, group] of the entries `ks` of rows first..first + height, 0 below these.
void CopyTilesFromColumns(const StoredMatrix& a, int64_t first, int64_t height, const int32_t* ks,
                          int64_t n, int64_t group, float* values);

// Lists of k blocks; next[q] is the place of the next entry of block q, and moves on.
void FillBlocksFromColumns(const DetectedRows& rows, int64_t width, int32_t* next, float* values,
                           int32_t* live);

// to[0..n) = from * factor, or `from` for a null factor.
inline void CopyProduct(const float* __restrict from, const float* __restrict factor, int64_t n,
                        float* __restrict to) {
  if (factor) {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i] * factor[i];
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i];
  }
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

}  // namespace pitc
