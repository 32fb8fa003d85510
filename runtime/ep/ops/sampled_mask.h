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

}  // namespace pitc
