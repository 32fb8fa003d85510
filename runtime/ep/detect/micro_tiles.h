// The detector of contractions: one bit per element says where A is not zero; from the bits alone
// come the counts that a selector needs, and then the lists of live micro-tiles that a kernel
// reads. What bits and counts are: simd/primitives.h.
#pragma once

#include "simd/primitives.h"

namespace pitc {

struct Range {
  int64_t begin, end;
};

// A matrix A, [count, k], as it lies in memory.
struct StoredMatrix {
  const float* a;
  const int32_t* rows;  // row r stands at a + rows[r] * stride, or a + r * stride without these
  int64_t count, k;
  int64_t stride;  // k or more

  const float* Row(int64_t r) const { return a + (rows ? rows[r] : r) * stride; }
  StoredMatrix Part(const Range& part_rows, const Range& ks) const;
};

// The bits of A, of which rows are `words` apart.
void MatrixBits(const Primitives& simd, Live live, const StoredMatrix& a, uint64_t* bits,
                int64_t words);

// A matrix and its bits, [count, BitWords(k)]; of kPositive lists have its ReLU.
struct DetectedRows {
  StoredMatrix matrix;
  const uint64_t* bits;
  Live live = Live::kNotZero;

  int64_t Count() const { return matrix.count; }
  int64_t K() const { return matrix.k; }
  const uint64_t* Bits(int64_t r) const { return bits + r * BitWords(matrix.k); }
};

// The lists. `entries` is what was counted, below 2^31; nothing is written behind the last entry,
// each list of k or rows ascends, and no element of a dead micro-tile wider or higher than 1 is
// read.

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
