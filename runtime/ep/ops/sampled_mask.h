// The mask of a sampled product: which elements of its result are computed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/arena.h"
#include "base/index.h"
#include "detect/micro_tiles.h"
#include "ort/run_context.h"
#include "simd/primitives.h"

namespace pitc {

// Bits of the mask's elements, [rows, words].
struct SampledMask {
  const uint64_t* bits;
  int64_t rows, columns, words;

  const uint64_t* Row(int64_t r) const { return bits + r * words; }
  // The columns in which one of some rows lives, in words begin..end.
  void Any(int64_t first, int64_t last, const Range& part, uint64_t* any) const {
    std::copy(Row(first) + part.begin, Row(first) + part.end, any);
    for (int64_t r = first + 1; r < last; ++r) {
      for (int64_t w = part.begin; w < part.end; ++w) any[w - part.begin] |= Row(r)[w];
    }
  }
};

// Input `place`, of `rows` rows of `columns`, in any number of dimensions: NaN lives, -0.0 does
// not.
SampledMask ReadSampledMask(const RunContext& run, const Primitives& simd, int place, int64_t rows,
                            int64_t columns, Arena::Scope& scratch);

// Sets elements of a row of C to 0 that do not live; those whose bit in `written` is not set are 0.
void KeepLive(const uint64_t* bits, const uint64_t* written, int64_t n, float* c);

// The columns that blocks of `height` rows list, of some rows and columns of C.
struct ListedColumns {
  const uint64_t* any;     // their bits, [blocks, words]
  const int32_t* starts;   // [blocks + 1]
  const int32_t* columns;  // [entries]
  int64_t blocks, words, entries;
};
// bits(first, last, words, any): those of rows first..last, in a range of words.
template <class Bits>
ListedColumns ListColumns(const Primitives& simd, int64_t height, const Range& rows,
                          const Range& columns, Arena::Scope& scratch, const Bits& bits) {
  const Blocks blocks{rows.end - rows.begin, height};
  const Range part{columns.begin / 64, BitWords(columns.end)};
  const int64_t count = blocks.Count(), words = part.end - part.begin;
  auto* const any = scratch.Array<uint64_t>(count * words);
  auto* const starts = scratch.Array<int32_t>(count + 1);
  starts[0] = 0;
  for (int64_t g = 0; g < count; ++g) {
    bits(rows.begin + blocks.Begin(g), rows.begin + blocks.End(g), part, any + g * words);
    starts[g + 1] = starts[g] + static_cast<int32_t>(simd.count_bits(any + g * words, words));
  }
  const int64_t entries = starts[count];
  auto* const listed = scratch.Array<int32_t>(entries);
  Positions* const positions = simd.PositionsFor(entries, count * words);
  for (int64_t g = 0; g < count; ++g)
    positions(any + g * words, words, columns.begin, listed + starts[g], entries - starts[g]);
  return {any, starts, listed, count, words, entries};
}

}  // namespace pitc
