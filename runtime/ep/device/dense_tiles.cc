#include "device/dense_tiles.h"

#include <algorithm>

#include "base/failure.h"

namespace pitc::cuda {

std::vector<DenseTile> OfferedTiles(Element type, const std::vector<TileClocks>& of_archs, int arch,
                                    int most_shared_bytes, bool tf32) {
  const std::vector<const CudaTile*> all = TilesOf(type);
  const std::vector<int64_t>& clocks = ForArch(of_archs, arch).clocks;
  std::vector<DenseTile> offered;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool exact = type != Element::kFloat32 || tf32 || !all[i]->mma;
    if (exact && all[i]->shared_bytes <= most_shared_bytes) offered.push_back({all[i], clocks[i]});
  }
  if (offered.empty())
    Fail("expected a device with shared memory for a dense tile, got ", most_shared_bytes,
         " bytes");
  return offered;
}

int64_t TileCount(const CudaTile& tile, int64_t rows, int64_t n) {
  return StepCount(rows, tile.m) * StepCount(n, tile.n);
}

size_t FastestTile(const std::vector<DenseTile>& tiles, Element type, const ProductPlan& product,
                   int64_t rows, int processors, int64_t groups) {
  const int64_t row_bytes = product.k * RecordOf(type).bytes;
  const auto time = [&](const DenseTile& tile) {
    const int64_t listed = rows + groups * (tile.shape->m - 1) / 2;
    return TileTime(*tile.shape, tile.clocks, listed, row_bytes, product.n, processors);
  };
  const auto fastest =
      std::min_element(tiles.begin(), tiles.end(),
                       [&](const DenseTile& a, const DenseTile& b) { return time(a) < time(b); });
  return static_cast<size_t>(fastest - tiles.begin());
}

}  // namespace pitc::cuda
