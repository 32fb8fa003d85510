#include "plan/prices.h"

#include <algorithm>

#include "base/failure.h"
#include "plan/fields.h"

namespace pitc {
namespace {

constexpr int64_t kMostClocks = 1 << 30;
constexpr int64_t kHighestArch = 999;

// So many numbers.
std::vector<int64_t> ReadNumbers(Fields& in, const std::string& key, size_t count, int64_t most) {
  std::vector<int64_t> numbers = in.Ints(key, 0, most);
  if (numbers.size() != count)
    Fail("plan: expected ", key, " as ", count, " numbers, got ", numbers.size());
  return numbers;
}

// The lines `cost_VARIANT_LEVEL`: the price of each feature. Dense is always offered. What has
// prices may have `shape_VARIANT_LEVEL`: factors by the shape of what lives.
CostTable ReadCosts(Fields& in, std::string_view level) {
  CostTable table;
  for (int v = 0; v < kVariants; ++v) {
    const std::string key = Text("cost_", Name(static_cast<Variant>(v)), "_", level);
    if (!in.Has(key)) continue;
    CostTable::Line& line = table.lines[v];
    const std::vector<int64_t> prices = ReadNumbers(in, key, kFeatures, kHighestPrice);
    std::copy(prices.begin(), prices.end(), line.prices);
    line.offered = true;
    const std::string shape = Text("shape_", Name(static_cast<Variant>(v)), "_", level);
    if (!in.Has(shape)) continue;
    const std::vector<int64_t> factors = ReadNumbers(in, shape, kFactors, kHighestFactor);
    std::copy(factors.begin(), factors.end(), line.factors);
    line.shaped = true;
  }
  table.lines[static_cast<int>(Variant::kDense)].offered = true;
  return table;
}

// The lines `clocks_sm_ARCH`.
std::vector<TileClocks> ReadClocks(Fields& in, Element type) {
  std::vector<TileClocks> all;
  for (const int64_t arch : in.NumbersBehind("clocks_sm_", kHighestArch)) {
    const std::string key = Text("clocks_sm_", arch);
    all.push_back(
        {static_cast<int>(arch), ReadNumbers(in, key, TilesOf(type).size(), kMostClocks)});
  }
  if (all.empty()) Fail("plan: key 'clocks_sm_..' is missing");
  return all;
}

// The lines `price_VARIANT_TILE_sm_ARCH` of each architecture that has clocks.
std::vector<OfferPrices> ReadOffers(Fields& in, Element type,
                                    const std::vector<TileClocks>& clocks) {
  std::vector<OfferPrices> all;
  for (const TileClocks& each : clocks) {
    OfferPrices& of_arch = all.emplace_back(OfferPrices{each.arch, {}});
    for (const CudaOffer* offer : OffersOf(type)) {
      const std::string key = Text("price_", offer->variant, "_", offer->tile, "_sm_", each.arch);
      const std::vector<int64_t> prices = ReadNumbers(in, key, kCudaFeatures, kHighestPrice);
      std::copy(prices.begin(), prices.end(), of_arch.prices.emplace_back().begin());
    }
  }
  return all;
}

}  // namespace

std::vector<const CudaTile*> TilesOf(Element type) {
  std::vector<const CudaTile*> tiles;
  for (const CudaTile& tile : kCudaTiles) {
    if (tile.mma || type == Element::kFloat32) tiles.push_back(&tile);
  }
  return tiles;
}

std::vector<const CudaOffer*> OffersOf(Element type) {
  std::vector<const CudaOffer*> offers;
  for (const CudaOffer& offer : kCudaOffers) {
    if (offer.item_bytes == RecordOf(type).bytes) offers.push_back(&offer);
  }
  return offers;
}

Prices Prices::Read(Fields& in, Element type, bool skips) {
  Prices prices;
  if (in.machine() == Machine::kCuda) {
    prices.clocks = ReadClocks(in, type);
    if (skips) prices.offers = ReadOffers(in, type, prices.clocks);
  } else if (skips) {
    prices.v3 = ReadCosts(in, "v3");
    prices.v4 = ReadCosts(in, "v4");
    if (in.Has("cost_dense_v4_amx")) {
      prices.amx = ReadCosts(in, "v4_amx");
      prices.amx->least_gain = 1;  // its points lose by one (docs/adr/0050)
    }
  }
  return prices;
}

const CostTable& Prices::Of(CpuLevel machine, CpuLevel dense) const {
  if (dense == CpuLevel::kV4Amx && amx) return *amx;
  return machine >= CpuLevel::kV4 ? v4 : v3;
}

}  // namespace pitc
