// The detector of contractions: one bit per element says where A is not zero; from the bits alone
// come the counts that a selector needs, and then the lists of live micro-tiles that a kernel
// reads.
//
// "Zero" is x == 0: so is -0.0; NaN, infinities and denormals are not. A row of k elements has
// BitWords(k) words of bits: bit i of word w belongs to element 64 w + i, bits beyond k are 0.
#pragma once

#include <cstdint>

#include "cpu_level.h"

namespace pitc {

inline int64_t BitWords(int64_t k) { return (k + 63) / 64; }

// What counts as live: what is not zero, or what ReLU would leave (NaN among it).
enum class Live { kNotZero, kPositive };

// The bits of row[0..n), which needs no more than a float's alignment and is not read beyond n.
void LiveBits(CpuLevel level, Live live, const float* row, int64_t n, uint64_t* bits);

// Heights of micro-tiles Gx1 and widths of micro-tiles 1xW that are counted.
constexpr int kStripHeights[] = {4, 8, 16, 32};
constexpr int kSegmentWidths[] = {16, 32, 64};

// Live micro-tiles. Groups of rows start at row 0 of a call, and the last one may be short.
struct MicroTileCounts {
  int64_t rows = 0;               // with a live element
  int64_t elements = 0;           // 1x1
  int64_t strips[4] = {};         // Gx1, in the order of kStripHeights
  int64_t segments[3] = {};       // 1xW, in the order of kSegmentWidths
  int64_t squares[2] = {};        // 16x16, 32x32
  int64_t segment_steps[3] = {};  // register tiles of contract_block, see CountRules

  MicroTileCounts& operator+=(const MicroTileCounts& other);
};

// contract_block works on the live rows of a k block, `tile_rows` at a time, for each `list_rows`
// rows that share their lists.
struct CountRules {
  int64_t list_rows = 512;  // a multiple of 32, below 65536
  int64_t tile_rows = 6;    // below 32768
};

// Counts [rows, BitWords(k)] bits. Counts of parts of a matrix may be added up where each part but
// the last has a multiple of 32 rows (of `list_rows` for the steps). Live columns are or-ed into
// `columns`, BitWords(k) words, unless it is null.
MicroTileCounts CountMicroTiles(CpuLevel level, const uint64_t* bits, int64_t rows, int64_t k,
                                const CountRules& rules = {}, uint64_t* columns = nullptr);

// How many of words[0..n)'s bits are set: live columns, or the entries of row lists.
int64_t CountBits(CpuLevel level, const uint64_t* words, int64_t n);

// Live micro-tiles of `group` x 1 for any height: the entries of tile lists.
int64_t CountStrips(CpuLevel level, const uint64_t* bits, int64_t rows, int64_t k, int64_t group);

// Some rows of A and their bits, [count, BitWords(k)]. Row r stands at a + rows[r] * k, or at
// a + r * k where `rows` is null.
struct DetectedRows {
  const float* a;
  const int32_t* rows;
  const uint64_t* bits;
  int64_t count, k;

  const float* Row(int64_t r) const { return a + (rows ? rows[r] : r) * k; }
  const uint64_t* Bits(int64_t r) const { return bits + r * BitWords(k); }
};

// The lists. `entries` is what was counted, below 2^31; nothing is written behind the last entry,
// each list of k or rows ascends, and no element of a dead micro-tile is read.

// Entries of k block q, `k_block` (a multiple of 64) elements each, and row r are
// starts[q * count + r] .. starts[q * count + r + 1]: ks[z] and values[z] = A[r, ks[z]]. starts has
// ceil(k / k_block) * count + 1 elements, entries = MicroTileCounts::elements.
void FillRowLists(CpuLevel level, const DetectedRows& rows, int64_t k_block, int64_t entries,
                  float* values, int32_t* ks, int32_t* starts);

// Entries of group g, `group` (a multiple of 4) rows each, are starts[g] .. starts[g + 1]: ks[z]
// and values[z, i] = A[g * group + i, ks[z]], 0 beyond the last row. starts has one element more
// than there are groups, entries = CountStrips(.., group).
void FillTileLists(CpuLevel level, const DetectedRows& rows, int64_t group, int64_t entries,
                   float* values, int32_t* ks, int32_t* starts);

// Entries of k block q, `width` (16, 32 or 64) elements each, are starts[q] .. starts[q + 1]:
// live[z], a row of the block, and values[z, i] = A[live[z], q * width + i], 0 beyond k. starts has
// ceil(k / width) + 1 elements, entries = MicroTileCounts::segments of that width.
void FillBlockLists(const DetectedRows& rows, int64_t width, float* values, int32_t* live,
                    int32_t* starts);

}  // namespace pitc
