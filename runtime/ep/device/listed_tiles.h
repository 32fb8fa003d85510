// Variants of a contraction on a device: which it has, which of them a run chooses between, and
// what it is given for that. The device chooses; the host knows how large all is, and rules out
// what cannot pay.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/dense_tiles.h"
#include "plan/plan.h"

namespace pitc::cuda {

using FeaturePrices = std::array<int64_t, kCudaFeatures>;

// A variant in a dense tile, and the rows whose sums a thread block has.
struct OfferedVariant {
  const CudaOffer* shape;
  FeaturePrices prices;
  int64_t rows;  // of the tile, or more where it is one over blocks of k

  // Blocks that a multiprocessor has shared memory for, as many as are offered at most.
  int Together(int shared_bytes) const;
  std::string Kernel(const KernelNames& kernels) const;  // its symbol
  std::string Name() const;                              // in traces
};

// Those of a plan that a device of an architecture has shared memory for, priced as dense tiles
// are, in the order of kCudaOffers. `tf32`: float32 goes through tensor cores wherever it can.
std::vector<OfferedVariant> OfferedVariants(const ContractPlan& plan, int arch,
                                            int most_shared_bytes, bool tf32);

// One product on one device.
struct ProductSize {
  int64_t rows, k, n;
  Element type;
};

// How much memory lists take at most, and whether kernels can number all of it.
struct ListExtents {
  explicit ListExtents(const ProductSize& size);
  int64_t groups, segments, words, blocks, width;  // as G, S, H, B and W of docs/plans.md
  int64_t counts() const { return parts() * int64_t{std::size(kCudaTotals)} + blocks * groups; }
  int64_t places() const;
  int64_t entries(CudaCut cut) const;
  bool fits() const;

 private:
  int64_t parts() const { return groups * segments; }
  const ProductSize size_;
};

// What a device chooses between in a run: at most one variant of each cut, the dense one first.
class Choices {
 public:
  // `dense`: the dense tile that suits so many rows.
  Choices(const std::vector<OfferedVariant>& offered, const CudaTile& dense,
          const ProductSize& size, int processors);

  int count() const { return count_; }
  // Which of those that are offered has a number.
  size_t at(int number) const { return at_[static_cast<size_t>(number)]; }
  std::optional<int> NumberOf(CudaCut cut) const;

  // That dense may take longer than what the launches of the others take.
  bool IsWorthALook() const;

  // What kernels read: `table`, then `prices` (float32) and `count`, each at a multiple of 16
  // bytes.
  static constexpr int64_t kPrices = 4 * int64_t{kCudaColumns},
                           kCount = kPrices + 4 * kCudaFeatures;
  static constexpr int64_t kWords = kCount + 1;
  const int32_t* words() const { return words_.data(); }

 private:
  static_assert(kCudaCuts == 4 && kPrices % 4 == 0 && kCount % 4 == 0);
  const std::vector<OfferedVariant>& offered_;
  const ProductSize size_;
  const int processors_;
  int count_ = 0;
  std::array<size_t, kCudaCuts> at_{};
  std::array<int32_t, kWords> words_{};
};

}  // namespace pitc::cuda
