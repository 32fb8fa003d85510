// Which dense tile computes a contraction: the one with the least predicted time (`tile_time` of
// pitc/ir/cuda_variants.py).
#pragma once

#include <vector>

#include "plan/plan.h"

namespace pitc::cuda {

// Of what a plan says of each architecture, oldest first, that of the newest one which is not newer
// than a device's, else of the oldest.
template <class OfArch>
const OfArch& ForArch(const std::vector<OfArch>& all, int arch) {
  const OfArch* found = &all.front();
  for (const OfArch& each : all) {
    if (each.arch <= arch) found = &each;
  }
  return *found;
}

struct DenseTile {
  const CudaTile* shape;
  int64_t clocks;  // of a step
};

// Those of a type that a device of an architecture has shared memory for, with its clocks or those
// of the nearest older one. `tf32`: float32 may go through tensor cores. Throws Failure if there
// are none.
std::vector<DenseTile> OfferedTiles(Element type, const std::vector<TileClocks>& of_archs, int arch,
                                    int most_shared_bytes, bool tf32);

// How many dense tiles make up a product.
int64_t TileCount(const CudaTile& tile, int64_t rows, int64_t n);

// The place of the fastest; the first of equals. `groups`: of so many the last tile is half full.
size_t FastestTile(const std::vector<DenseTile>& tiles, Element type, const ProductPlan& product,
                   int64_t rows, int processors, int64_t groups = 0);

}  // namespace pitc::cuda
