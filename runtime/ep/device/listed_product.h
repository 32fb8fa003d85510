// A product whose left operand may hold zeros, on a device that finds them, chooses and skips by
// itself: a fixed sequence of launches, in which nobody waits.
//
//   detect     what is not 0, and how much of it      (of A, or of bits that a kernel has told)
//   choose     the variant that is predicted to be the fastest, and where its lists begin
//   lists      of that variant
//   products   of every variant; those that were not chosen leave at once
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "device/listed_tiles.h"
#include "device/product.h"

namespace pitc::cuda {

struct ListedKernels {
  DeviceKernel detect, choose;
  std::map<int64_t, DeviceKernel> lists;  // by the height of a tile
  std::vector<DeviceKernel> products;     // of each variant that is offered; of dense ones none
};

class ListedProduct {
 public:
  // `forced`: the cut that is to be chosen wherever it is offered.
  ListedProduct(std::vector<OfferedVariant> offered, ListedKernels kernels,
                std::optional<CudaCut> forced)
      : offered_(std::move(offered)), kernels_(std::move(kernels)), forced_(forced) {}

  // `bits`: what a kernel has told of A, or null. `dense` has the same product.
  void Run(const DeviceRun& run, const ProductOperands& operands, const void* bits,
           const DenseProduct& dense) const;

 private:
  struct Memory;
  void MakeLists(const DeviceRun& run, const ProductOperands& operands, const void* bits,
                 const DenseProduct& dense, const Choices& choices, const Memory& memory) const;
  void RunVariant(const DeviceRun& run, const ProductOperands& operands, const DenseProduct& dense,
                  const OfferedVariant& variant, size_t at, const Memory& memory,
                  const Gate& gate) const;
  void Tell(const DeviceRun& run, const ProductSize& size, const Choices& choices,
            const Memory& memory) const;

  const std::vector<OfferedVariant> offered_;
  const ListedKernels kernels_;
  const std::optional<CudaCut> forced_;
};

}  // namespace pitc::cuda
