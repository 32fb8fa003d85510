// Where bits are set.
#pragma once

#include <cstdint>

#include "base/cpu_level.h"

namespace pitc {

// Finds positions, in the form that is the fastest for `entries` in `words` words.
class Positions {
 public:
  Positions(CpuLevel level, int64_t entries, int64_t words);

  // Of the set bits of words[0..n), the first of which is `first`, into to[0..room), which are at
  // least as many; how many. What stands behind them in `to` may be overwritten.
  int64_t operator()(const uint64_t* words, int64_t n, int64_t first, int32_t* to,
                     int64_t room) const;

  // How many set bits, for so few words that a call of CountBits takes longer.
  int64_t Count(const uint64_t* words, int64_t n) const;

 private:
  CpuLevel level_;
};

}  // namespace pitc
