// The detector: positions of the live elements of a byte mask, in order.
#pragma once

#include <cstdint>

#include "cpu_level.h"

namespace pitc {

// How many of live[0..n) are not 0.
int64_t CountLive(CpuLevel level, const uint8_t* live, int64_t n);

// For the j-th of the `count` live elements, at position p: positions[j] = p, rows[j] = first_row +
// p. Nothing after `count` entries is written. `count` must be CountLive(live, n).
void FillLive(CpuLevel level, const uint8_t* live, int64_t n, int32_t first_row, int64_t count,
              int32_t* rows, int32_t* positions);

}  // namespace pitc
