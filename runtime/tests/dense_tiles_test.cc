#include "device/dense_tiles.h"

#include "check.h"

using pitc::ContractPlan;
using pitc::Element;
using pitc::cuda::DenseTile;
using pitc::cuda::FastestTile;
using pitc::cuda::OfferedTiles;
using pitc::test::Contains;
using pitc::test::Thrown;

namespace {

constexpr int kAll = 227 << 10;  // bytes of shared memory

ContractPlan Plan(Element type) {
  ContractPlan plan{};
  plan.dtype = type;
  plan.k = plan.n = 1024;
  for (const int arch : {80, 90}) {
    plan.prices.clocks.push_back({arch, {512, 288, 416, 336}});
    plan.prices.clocks.back().clocks.resize(pitc::TilesOf(type).size(), 10 * arch);
  }
  return plan;
}

std::vector<DenseTile> Offered(const ContractPlan& plan, int arch, int shared, bool tf32) {
  return OfferedTiles(plan.dtype, plan.prices.clocks, arch, shared, tf32);
}

void TakesTheClocksOfTheNearestOlderOne() {
  ContractPlan plan = Plan(Element::kFloat16);
  plan.prices.clocks[1].clocks[0] = 700;
  CHECK(Offered(plan, 80, kAll, true)[0].clocks == 512);
  CHECK(Offered(plan, 89, kAll, true)[0].clocks == 512);
  CHECK(Offered(plan, 90, kAll, true)[0].clocks == 700);
  CHECK(Offered(plan, 120, kAll, true)[0].clocks == 700);
  CHECK(Offered(plan, 75, kAll, true)[0].clocks == 512);  // there is no older one
}

void OffersWhatServes() {
  const auto names = [](Element type, int shared, bool tf32) {
    std::string all;
    for (const DenseTile& tile : Offered(Plan(type), 80, shared, tf32))
      all += std::string(tile.shape->name) + " ";
    return all;
  };
  const std::string cores = "mma128x128 mma64x128 mma32x128 mma16x128 ";
  const std::string units = "simt128x128 simt32x128 ";
  CHECK(names(Element::kFloat16, kAll, true) == cores);
  CHECK(names(Element::kBfloat16, kAll, false) == cores);
  CHECK(names(Element::kFloat32, kAll, true) == cores + units);
  CHECK(names(Element::kFloat32, kAll, false) == units);
  CHECK(names(Element::kFloat16, 64 << 10, true) == "mma128x128 mma64x128 ");
  CHECK(Contains(Thrown([&] { names(Element::kFloat16, 32 << 10, true); }),
                 "expected a device with shared memory for a dense tile, got 32768 bytes"));
}

// The example of dense_tiles.h, and others.
void TakesTheLeastTime() {
  const ContractPlan plan = Plan(Element::kFloat16);
  const std::vector<DenseTile> tiles = Offered(plan, 80, kAll, true);
  const auto fastest = [&](int64_t rows, int processors) {
    return std::string(
        tiles[FastestTile(tiles, plan.dtype, pitc::ProductOf(plan), rows, processors)].shape->name);
  };
  CHECK(pitc::cuda::TileCount(*tiles[0].shape, 1000, 1024) == 64);
  CHECK(pitc::cuda::TileCount(*tiles[1].shape, 1000, 1024) == 128);
  CHECK(fastest(1000, 108) == "mma64x128");   // two turns of 64 rows, or one alone of 128
  CHECK(fastest(3000, 108) == "mma128x128");  // two of 128 rows
  CHECK(fastest(64, 108) == "mma16x128");     // 32 tiles of half as many steps
  CHECK(fastest(1, 108) == "mma16x128");
  CHECK(fastest(300, 108) == "mma32x128");
  CHECK(fastest(300, 30) == "mma64x128");
  CHECK(fastest(INT32_MAX, 1) == "mma128x128");
}

}  // namespace

int main() {
  return pitc::test::RunTests(
      {{"takes clocks of the nearest older architecture", TakesTheClocksOfTheNearestOlderOne},
       {"offers what serves", OffersWhatServes},
       {"takes the least time", TakesTheLeastTime}});
}
