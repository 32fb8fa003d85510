// What detection does on vectors: bits, counts and positions of what lives.
//
// "Zero" is x == 0: so is -0.0; NaN, infinities and denormals are not. A row of k elements has
// BitWords(k) words of bits: bit i of word w belongs to element 64 w + i, bits beyond k are 0.
#pragma once

#include <cstdint>

#include "base/cpu_level.h"
#include "machines.h"

namespace pitc {

inline int64_t BitWords(int64_t k) { return (k + 63) / 64; }

// What counts as live: what is not zero, what ReLU would leave (NaN among it), or words of two
// numbers of bfloat16 of which one is not zero.
enum class Live { kNotZero, kPositive, kWords };

// Live micro-tiles. Groups of rows start at row 0 of a call, and the last one may be short.
struct MicroTileCounts {
  int64_t elements = 0;                  // 1x1
  int64_t strips[kStripKinds] = {};      // Gx1
  int64_t segments[kSegmentKinds] = {};  // 1xW

  MicroTileCounts& operator+=(const MicroTileCounts& other);
  // What was found in `part` would be this in `all`.
  void Scale(double all, double part);
};

// Writes the positions of the set bits of words[0..n), the first of which is `first`, to
// to[0..room), which are at least as many; returns how many. What stands behind them in `to` may be
// overwritten.
using Positions = int64_t(const uint64_t* words, int64_t n, int64_t first, int32_t* to,
                          int64_t room);

// One CPU level's machine code. A session finds it once.
struct Primitives {
  CpuLevel level;

  // The bits of row[0..n), which needs no more than a float's alignment and is not read beyond n.
  void (*live_bits)(Live live, const float* row, int64_t n, uint64_t* bits);

  // The bits of bytes that are not 0; how many.
  int64_t (*mask_bits)(const uint8_t* bytes, int64_t n, uint64_t* bits);

  // Adds what [rows, BitWords(k)] bits count. Parts of a matrix may be counted apart where each but
  // the last has a multiple of the highest of kStripHeights. Live columns are or-ed into `columns`,
  // BitWords(k) words, unless it is null.
  void (*count_micro_tiles)(const uint64_t* bits, int64_t rows, int64_t k, uint64_t* columns,
                            MicroTileCounts* counts);

  // How many bits of words[0..n) are set.
  int64_t (*count_bits)(const uint64_t* words, int64_t n);

  Positions* few_positions;   // is the faster one for up to 4 per word
  Positions* many_positions;  // is the faster one for more
  Positions* PositionsFor(int64_t entries, int64_t words) const {
    return entries <= 4 * words ? few_positions : many_positions;
  }

  // The same positions, and values[z] = row[ks[z]]. The row has k elements, any of which may be
  // read.
  int64_t (*pack)(const uint64_t* words, int64_t n, int64_t first, const float* row, int64_t k,
                  int32_t* ks, float* values, int64_t room);

  // row[0..n) as bfloat16, or its ReLU where `live` is kPositive.
  void (*round)(Live live, const float* row, int64_t n, uint16_t* to);
};

const Primitives& PrimitivesOf(CpuLevel level);

}  // namespace pitc
