// The detector of contractions: one bit per element says where A is not zero; from the bits alone
// come the counts that a selector needs, and then the lists of live micro-tiles that a kernel
// reads. What bits and counts are: simd/primitives.h.
#pragma once

#include "simd/primitives.h"

namespace pitc {

// A matrix A, [count, k], as it lies in memory.
struct StoredMatrix {
  const float* a;
  const int32_t* rows;  // row r stands at a + rows[r] * k, or at a + r * k where this is null
  int64_t count, k;
  const float* factor = nullptr;  // stored as A; the matrix is the product, element by element
  int64_t columns = 0;            // not 0: A[r, k] stands at a + k * columns + r; no `rows` then

  const float* Row(const float* of, int64_t r) const { return of + (rows ? rows[r] : r) * k; }
  // Rows first.. of it.
  StoredMatrix Part(int64_t first, int64_t n) const;
};

struct Range {
  int64_t begin, end;
};

// The bits of some rows of A, `words` apart; of them, those of columns `ks`, which begin at a
// multiple of 64, and end at one or with A.
void MatrixBits(const Primitives& simd, Live live, const StoredMatrix& a, const Range& rows,
                const Range& ks, uint64_t* bits, int64_t words);

// A glance at A, where even the counts of some of its rows would cost too much: what lives in
// squares of 64 x 64 elements, scaled to all of it. About one element in `share` is read, at least
// one square, and the same ones for every A of that size.
MicroTileCounts SampleMicroTiles(const Primitives& simd, const StoredMatrix& a, int64_t share);

// Bit j of word i of 64 becomes bit i of word j.
void TransposeBits(uint64_t* words);

// A matrix and its bits, [count, BitWords(k)].
struct DetectedRows {
  StoredMatrix matrix;
  const uint64_t* bits;

  int64_t Count() const { return matrix.count; }
  int64_t K() const { return matrix.k; }
  const uint64_t* Bits(int64_t r) const { return bits + r * BitWords(matrix.k); }
};

// The lists. `entries` is what was counted, below 2^31; nothing is written behind the last entry,
// each list of k or rows ascends, and of an A stored by rows no element of a dead micro-tile wider
// or higher than 1 is read.

// Entries of k block q, `k_block` (a multiple of 64) elements each, and row r are
// starts[q * count + r] .. starts[q * count + r + 1]: ks[z] and values[z] = A[r, ks[z]]. starts has
// ceil(k / k_block) * count + 1 elements, entries = MicroTileCounts::elements.
void FillRowLists(const Primitives& simd, const DetectedRows& rows, int64_t k_block,
                  int64_t entries, float* values, int32_t* ks, int32_t* starts);

// Entries of group g, `group` (a multiple of 4) rows each, are starts[g] .. starts[g + 1]: ks[z]
// and values[z, i] = A[g * group + i, ks[z]], 0 beyond the last row. starts has one element more
// than there are groups, entries = MicroTileCounts::strips.
void FillTileLists(const Primitives& simd, const DetectedRows& rows, int64_t group, int64_t entries,
                   float* values, int32_t* ks, int32_t* starts);

// Entries of k block q, `width` (16, 32 or 64) elements each, are starts[q] .. starts[q + 1]:
// live[z], a row of the block, and values[z, i] = A[live[z], q * width + i], 0 beyond k. starts has
// ceil(k / width) + 1 elements, entries = MicroTileCounts::segments.
void FillBlockLists(const DetectedRows& rows, int64_t width, float* values, int32_t* live,
                    int32_t* starts);

}  // namespace pitc
