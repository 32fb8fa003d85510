// What a device is given to choose between: which variants, of how many rows, in how much memory.
#include "device/listed_tiles.h"

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "check.h"

using namespace pitc;
using namespace pitc::cuda;

namespace {

constexpr int kMostShared = 227 << 10;
const CudaTile& Tile(const char* name) {
  for (const CudaTile& tile : kCudaTiles) {
    if (std::string(tile.name) == name) return tile;
  }
  return kCudaTiles[0];
}

// Prices tell architecture and place.
ContractPlan SomePlan(Element type) {
  ContractPlan plan{};
  plan.dtype = type;
  plan.k = 3072, plan.n = 768;
  for (const int arch : {80, 90}) {
    OfferPrices& of_arch = plan.prices.offers.emplace_back(OfferPrices{arch, {}});
    for (size_t i = 0; i < OffersOf(type).size(); ++i)
      of_arch.prices.push_back({arch, static_cast<int64_t>(i), 1, 2});
  }
  return plan;
}

std::set<std::string> Names(const std::vector<OfferedVariant>& offered) {
  std::set<std::string> names;
  for (const OfferedVariant& each : offered) names.insert(each.Name());
  return names;
}

void Offered() {
  const ContractPlan half = SomePlan(Element::kFloat16), full = SomePlan(Element::kFloat32);
  const auto all = Names(OfferedVariants(half, 90, kMostShared, false));
  CHECK(all.size() == 4 + 2 + 3 + 1 && all.count("block64_mma64x64_r512"));
  const auto small = Names(OfferedVariants(half, 89, 99 << 10, true));
  CHECK(small.size() == all.size() - 2 && small.count("block64_mma64x64_r128"));
  const auto cores = Names(OfferedVariants(full, 90, kMostShared, true));
  CHECK(cores.size() == 6 + 2 + 3 + 1 && cores.count("tile16_mma16x128"));
  const auto exact = Names(OfferedVariants(full, 90, kMostShared, false));
  CHECK(exact.size() == 2 + 1 + 3 + 1 && exact.count("block32_simt64x64_r256"));
  for (const std::string& name : exact) CHECK(!test::Contains(name, "mma"));
}

void PricesOfArchitectures() {
  const ContractPlan plan = SomePlan(Element::kBfloat16);
  for (const auto& [arch, priced] : {std::pair{75, 80}, {80, 80}, {89, 80}, {90, 90}, {120, 90}})
    CHECK(OfferedVariants(plan, arch, kMostShared, false)[0].prices[0] == priced);
  const auto offered = OfferedVariants(plan, 80, kMostShared, false);
  CHECK(offered[6].prices[1] == 6 && offered[8].prices[1] == 6 && offered[9].prices[1] == 7);
}

void Symbols() {
  const KernelNames symbols(
      {{"tile", "tile_f16"}, {"block", "block_f16"}, {"square", "square_f16"}});
  std::set<std::string> kernels;
  const ContractPlan plan = SomePlan(Element::kFloat16);
  for (const OfferedVariant& each : OfferedVariants(plan, 90, kMostShared, false)) {
    if (each.shape->cut != CudaCut::kDense) kernels.insert(each.Kernel(symbols));
  }
  CHECK((kernels == std::set<std::string>{"tile_f16_mma16x128", "tile_f16_mma32x128",
                                          "block_f16_mma64x64_r128", "block_f16_mma64x64_r256",
                                          "block_f16_mma64x64_r512", "square_f16_mma32x128"}));
}

std::string NameOf(const std::vector<OfferedVariant>& offered, const Choices& choices,
                   CudaCut cut) {
  const auto number = choices.NumberOf(cut);
  return number ? offered[choices.at(*number)].Name() : "";
}

void Rows() {
  const ContractPlan plan = SomePlan(Element::kFloat16);
  const auto offered = OfferedVariants(plan, 80, kMostShared, false);
  const auto of = [&](int64_t rows, CudaCut cut, int processors = 108) {
    const ProductSize size{rows, 3072, 768, Element::kFloat16};
    const Choices choices(offered, Tile("mma64x128"), size, processors);
    CHECK(choices.count() == 4 && NameOf(offered, choices, CudaCut::kDense) == "dense_mma64x128");
    return NameOf(offered, choices, cut);
  };
  for (const int64_t rows : {1, 16}) CHECK(of(rows, CudaCut::kTile) == "tile16_mma16x128");
  for (const int64_t rows : {17, 4096}) CHECK(of(rows, CudaCut::kTile) == "tile32_mma32x128");
  // 12 panels: 4096 rows are 192 blocks of 256 rows and 96 of 512, for 108 multiprocessors.
  CHECK(of(4096, CudaCut::kBlock) == "block64_mma64x64_r256");
  CHECK(of(4096, CudaCut::kBlock, 96) == "block64_mma64x64_r512");
  CHECK(of(128, CudaCut::kBlock, 1) == "block64_mma64x64_r128");
  CHECK(of(129, CudaCut::kBlock, 1) == "block64_mma64x64_r256");
  CHECK(of(16, CudaCut::kBlock) == "block64_mma64x64_r128");
}

void WordsOfKernels() {
  const ContractPlan plan = SomePlan(Element::kFloat16);
  const auto offered = OfferedVariants(plan, 90, kMostShared, false);
  const ProductSize size{300, 3072, 768, Element::kFloat16};
  const Choices choices(offered, Tile("mma32x128"), size, 7);
  const int32_t* const words = choices.words();
  const int32_t table[] = {0, 32,  128, 64, 7, 0,   1, 32, 128, 32, 7, 64,
                           2, 512, 64,  64, 7, 128, 3, 32, 128, 32, 7, 4};
  CHECK(std::memcmp(words, table, sizeof table) == 0);
  const float prices[] = {90, 2, 1, 2, 90, 5, 1, 2, 90, 6, 1, 2, 90, 7, 1, 2};
  CHECK(std::memcmp(words + Choices::kPrices, prices, sizeof prices) == 0);
  CHECK(words[Choices::kCount] == 300);
}

void WhatPays() {
  ContractPlan plan = SomePlan(Element::kFloat16);
  for (OfferPrices& of_arch : plan.prices.offers) {
    for (auto& prices : of_arch.prices) prices = {1000, 0, 1, 10};
  }
  const auto offered = OfferedVariants(plan, 80, kMostShared, false);
  // 3 tiles across, steps of 32: each 4 steps, of 3 tiles in one turn, takes 4 * (3 + 10) = 52.
  const auto pays = [&](int64_t k, int processors) {
    const ProductSize size{64, k, 384, Element::kFloat16};
    return Choices(offered, Tile("mma64x128"), size, processors).IsWorthALook();
  };
  CHECK(!pays(128, 3) && !pays(32 * 769, 3) && pays(32 * 770, 3));  // 769 * 13 < 10000
  CHECK(pays(32 * 304, 1) && !pays(32 * 303, 1));                   // three turns: 33 a step
}

void Memory() {
  const ListExtents half({33, 300, 68, Element::kFloat16});
  CHECK(half.groups == 2 && half.segments == 2 && half.words == 10);
  CHECK(half.blocks == 5 && half.width == 64);
  CHECK(half.counts() == 5 * 4 + 5 * 2 && half.places() == 5 * 2 + 1);
  CHECK(half.entries(CudaCut::kTile) == 600 && half.entries(CudaCut::kBlock) == 165);
  CHECK(half.entries(CudaCut::kSquare) == 20 && half.entries(CudaCut::kDense) == 0);
  const ListExtents full({33, 300, 68, Element::kFloat32});
  CHECK(full.blocks == 10 && full.width == 32 && full.places() == 21);
  const ListExtents wide({1, 1000, 68, Element::kFloat16});  // blocks of 64 k
  CHECK(wide.places() == 17 && wide.segments == 4);
  // What is listed has at most 2^31 - 1 numbers.
  const auto fits = [](int64_t rows, int64_t k) {
    return ListExtents({rows, k, 64, Element::kFloat16}).fits();
  };
  CHECK(fits(32, (int64_t{1} << 26) - 64) && !fits(32, int64_t{1} << 26));
  CHECK(!fits(1, int64_t{1} << 26) && !fits(33, (int64_t{1} << 26) - 64));
  CHECK(fits((int64_t{1} << 20) - 32, 2048) && !fits(int64_t{1} << 20, 2048));
}

}  // namespace

int main() {
  return test::RunTests({{"offered", Offered},
                         {"prices of architectures", PricesOfArchitectures},
                         {"symbols", Symbols},
                         {"rows", Rows},
                         {"words of kernels", WordsOfKernels},
                         {"what pays", WhatPays},
                         {"memory", Memory}});
}
