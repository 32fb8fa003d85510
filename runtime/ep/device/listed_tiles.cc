#include "device/listed_tiles.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/failure.h"
#include "base/index.h"

namespace pitc::cuda {
namespace {

constexpr int64_t kWordBits = 64;  // k that bits are rounded up to

int64_t SumBytes(int64_t rows) { return rows * kPanelWidth * int64_t{sizeof(float)}; }

// Whose sums a thread block has: so many rows that the product still is a tile for each
// multiprocessor, but no more than there are.
bool IsBetter(int64_t rows, const ProductSize& size, int processors) {
  const bool fills = StepCount(size.rows, rows) * PanelCount(size.n) >= processors;
  return fills && rows / 2 < size.rows;
}

}  // namespace

int OfferedVariant::Together(int shared_bytes) const {
  return std::clamp(shared_bytes / shape->shared_bytes, kCudaLeastTogether, shape->together);
}

std::string OfferedVariant::Kernel(const KernelNames& kernels) const {
  const std::string name =
      Text(kernels.Of(kCudaCutNames[static_cast<size_t>(shape->cut)]), "_", shape->tile);
  return shape->cut == CudaCut::kBlock ? Text(name, "_r", rows) : name;
}

std::string OfferedVariant::Name() const {
  const std::string name = Text(shape->variant, "_", shape->tile);
  return shape->cut == CudaCut::kBlock ? Text(name, "_r", rows) : name;
}

std::vector<OfferedVariant> OfferedVariants(const ContractPlan& plan, int arch,
                                            int most_shared_bytes, bool tf32) {
  const std::vector<const CudaOffer*> all = OffersOf(plan.dtype);
  const bool by_cores = plan.dtype != Element::kFloat32 || tf32;
  const std::vector<FeaturePrices>& prices = ForArch(plan.prices.offers, arch).prices;
  std::vector<OfferedVariant> offered;
  for (size_t i = 0; i < all.size(); ++i) {
    const CudaOffer& offer = *all[i];
    const bool dense = offer.cut == CudaCut::kDense;
    if (dense ? offer.mma && !by_cores : offer.mma != by_cores) continue;
    if (offer.cut != CudaCut::kBlock) {
      if (offer.shared_bytes <= most_shared_bytes) offered.push_back({&offer, prices[i], offer.m});
      continue;
    }
    for (const int64_t rows : kCudaSummedRows) {
      if (offer.shared_bytes + SumBytes(rows) <= most_shared_bytes)
        offered.push_back({&offer, prices[i], rows});
    }
  }
  return offered;
}

ListExtents::ListExtents(const ProductSize& size)
    : groups(StepCount(size.rows, kCudaGroup)),
      segments(StepCount(size.k, kCudaSegment)),
      words(2 * StepCount(size.k, kWordBits)),
      width(kCudaBlockBytes / RecordOf(size.type).bytes),
      size_(size) {
  blocks = words * (kWordBits / 2) / width;
}

int64_t ListExtents::places() const { return std::max(parts(), blocks * groups) + 1; }

int64_t ListExtents::entries(CudaCut cut) const {
  switch (cut) {
    case CudaCut::kTile:
      return groups * size_.k;
    case CudaCut::kBlock:
      return size_.rows * blocks;
    case CudaCut::kSquare:
      return groups * words;
    case CudaCut::kDense:
      break;
  }
  return 0;
}

bool ListExtents::fits() const {
  return groups * kCudaGroup <= kInt32Max / (words * (kWordBits / 2));
}

Choices::Choices(const std::vector<OfferedVariant>& offered, const CudaTile& dense,
                 const ProductSize& size, int processors)
    : offered_(offered), size_(size), processors_(processors) {
  constexpr size_t kNone = SIZE_MAX;
  std::array<size_t, kCudaCuts> best;
  best.fill(kNone);
  for (size_t i = 0; i < offered.size(); ++i) {
    const CudaOffer& shape = *offered[i].shape;
    size_t& of_cut = best[static_cast<size_t>(shape.cut)];
    const bool fits = shape.cut == CudaCut::kDense  ? std::string_view(shape.tile) == dense.name
                      : shape.cut == CudaCut::kTile ? shape.m >= std::min(size.rows, kCudaGroup)
                                                    : true;
    const bool better = of_cut == kNone || (shape.cut == CudaCut::kBlock &&
                                            IsBetter(offered[i].rows, size, processors));
    if (fits && better) of_cut = i;
  }
  for (const size_t i : best) {
    if (i == kNone) continue;
    const CudaOffer& shape = *offered[i].shape;
    const int64_t line[] = {static_cast<int64_t>(shape.cut),
                            offered[i].rows,
                            shape.n,
                            shape.step,
                            processors,
                            shape.entry};
    static_assert(std::size(line) == kCudaColumns);
    std::copy(std::begin(line), std::end(line), words_.begin() + count_ * kCudaColumns);
    float prices[kCudaFeatures];
    std::copy(offered[i].prices.begin(), offered[i].prices.end(), prices);
    std::memcpy(words_.data() + kPrices + count_ * kCudaFeatures, prices, sizeof prices);
    at_[static_cast<size_t>(count_++)] = i;
  }
  words_[kCount] = static_cast<int32_t>(size.rows);
}

std::optional<int> Choices::NumberOf(CudaCut cut) const {
  for (int number = 0; number < count_; ++number) {
    if (offered_[at(number)].shape->cut == cut) return number;
  }
  return std::nullopt;
}

bool Choices::IsWorthALook() const {
  const OfferedVariant& dense = offered_[at(0)];
  const auto amounts = DenseFeatures(*dense.shape, size_.rows, size_.k, size_.n, processors_);
  double takes = 0;
  for (size_t f = 0; f < amounts.size(); ++f)
    takes += amounts[f] * static_cast<double>(dense.prices[f]);
  return takes > static_cast<double>((1 + kCudaOtherLaunches) * dense.prices[0]);
}

}  // namespace pitc::cuda
