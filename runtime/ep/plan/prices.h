// What the ways to compute a contraction cost, as plans say.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/cpu_level.h"
#include "machines.h"
#include "select/selector.h"

namespace pitc {

class Fields;

// Clocks that a step of each dense tile takes on devices of an architecture, in the order of
// TilesOf.
struct TileClocks {
  int arch;  // 90: sm_90
  std::vector<int64_t> clocks;
};

// The dense tiles that a type has: by tensor cores, and of float32 by FMA units, too.
std::vector<const CudaTile*> TilesOf(Element type);

// Femtoseconds for each feature of each variant on devices of an architecture, in the order of
// OffersOf.
struct OfferPrices {
  int arch;
  std::vector<std::array<int64_t, kCudaFeatures>> prices;
};

// The variants that a type has, in each of their dense tiles.
std::vector<const CudaOffer*> OffersOf(Element type);

struct Prices {
  CostTable v3, v4;                 // of CPUs
  std::optional<CostTable> amx;     // of bfloat16, where a matrix unit multiplies
  std::vector<TileClocks> clocks;   // for a GPU: at least one, oldest architecture first
  std::vector<OfferPrices> offers;  // where a GPU skips zeros, of the same architectures

  // Of a contraction; where nothing is skipped a CPU's has none. Throws Failure.
  static Prices Read(Fields& in, Element type, bool skips);

  // Those of a CPU whose dense kernel was built for level `dense`.
  const CostTable& Of(CpuLevel machine, CpuLevel dense) const;
};

}  // namespace pitc
