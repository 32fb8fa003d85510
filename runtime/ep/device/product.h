// A product with a right operand in panels on a device, and the kernels that compute all of it.
#pragma once

#include <vector>

#include "device/dense_tiles.h"
#include "device/device_run.h"
#include "ops/product.h"

namespace pitc::cuda {

// The right operand and its bias, on the device.
struct DevicePanels {
  const void* b = nullptr;     // [count, k, kPanelWidth]
  const void* bias = nullptr;  // [count * kPanelWidth]
  int64_t count = 0;
  int64_t matrices = 1;  // of so many panels each
};
DevicePanels ReadPanels(const DeviceRun& run, int b, int bias, const char* role,
                        const ProductPlan& product, Element type);

// C[rows_c[i]] = act(A[rows_a[i]] @ B + bias) + residual[i] for i < count, or, with a gate, for i <
// gate[1], which is not more; all on the device.
struct ProductOperands {
  const void* a = nullptr;  // [stored_a, k]
  int64_t stored_a = 0;
  const int32_t* rows_a = nullptr;
  int64_t count = 0;
  DevicePanels panels;
  const void* residual = nullptr;  // [count, n], or null
  const int32_t* rows_c = nullptr;
  void* c = nullptr;  // [stored_c, n]
  int64_t stored_c = 0;
  const int32_t* gate = nullptr;  // as DeviceInput::gate
  // Where there are several matrices: the one of each dense tile of listed rows.
  const int32_t* of_tile = nullptr;
  int64_t row_tiles = 0;
};

// What all contractions have behind A and its lists.
void AddTail(const ProductOperands& operands, const ProductPlan& product, Element type,
             KernelCall* call);

class DenseProduct {
 public:
  // `kernels`: of each tile.
  DenseProduct(const ProductPlan& product, Element type, std::vector<DenseTile> tiles,
               std::vector<DeviceKernel> kernels)
      : product_(product), type_(type), tiles_(std::move(tiles)), kernels_(std::move(kernels)) {}

  const ProductPlan& product() const { return product_; }
  Element type() const { return type_; }

  // Which dense tile suits so many rows, perhaps of so many groups.
  size_t TileFor(int64_t rows, const Device& device, int64_t groups = 0) const {
    return FastestTile(tiles_, type_, product_, rows, device.multiprocessors(), groups);
  }
  const CudaTile& shape(size_t tile) const { return *tiles_[tile].shape; }

  // One launch, of a kernel of a tile. `bits`: [count, 2 * panels] words for the elements that are
  // not 0 (kernels `_bits`), or null. `gate`: null where it is to run whatever was chosen, for the
  // rows of the operands.
  void Run(const DeviceRun& run, const ProductOperands& operands, size_t tile, void* bits = nullptr,
           const Gate* gate = nullptr) const;

 private:
  const ProductPlan product_;
  const Element type_;
  const std::vector<DenseTile> tiles_;
  const std::vector<DeviceKernel> kernels_;
};

}  // namespace pitc::cuda
