// Bits of what lives in a matrix.
#include "detect/micro_tiles.h"

namespace pitc {

StoredMatrix StoredMatrix::Part(const Range& part_rows, const Range& ks) const {
  StoredMatrix part{a + ks.begin, rows, part_rows.end - part_rows.begin, ks.end - ks.begin, stride};
  if (rows) {
    part.rows += part_rows.begin;
  } else {
    part.a += part_rows.begin * stride;
  }
  return part;
}

void MatrixBits(const Primitives& simd, Live live, const StoredMatrix& a, uint64_t* bits,
                int64_t words) {
  for (int64_t r = 0; r < a.count; ++r) simd.live_bits(live, a.Row(r), a.k, bits + r * words);
}

}  // namespace pitc
