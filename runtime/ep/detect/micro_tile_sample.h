// A glance at a matrix, where even the counts of some of its rows would cost too much.
#pragma once

#include "detect/micro_tiles.h"

namespace pitc {

// What lives in squares of 64 x 64 elements, scaled to all of A, [count, k]. About one element in
// `share` is read, at least one square, and the same ones for every A of that size.
MicroTileCounts SampleMicroTiles(const Primitives& simd, const StoredMatrix& a, int64_t share);

}  // namespace pitc
