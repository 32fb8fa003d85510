// The detector: positions of the live elements of a byte mask, in order. The mask is read once,
// into bits of our own: what is counted is what is listed, whatever its owner writes meanwhile.
#pragma once

#include <cstdint>

#include "base/cpu_level.h"

namespace pitc {

// Bit i % 64 of bits[i / 64] says that live[i] is not 0; of (n + 63) / 64 words, bits beyond n are
// 0. Returns how many live.
int64_t ReadMask(CpuLevel level, const uint8_t* live, int64_t n, uint64_t* bits);

// For the j-th set bit of those words, at position p: positions[j] = p, rows[j] = first_row + p.
// There are `count`, and nothing is written after so many entries.
void FillLive(CpuLevel level, const uint64_t* bits, int64_t n, int32_t first_row, int64_t count,
              int32_t* rows, int32_t* positions);

}  // namespace pitc
