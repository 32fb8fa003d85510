// Bits of what lives in a matrix.
#include <algorithm>

#include "detect/micro_tiles.h"

namespace pitc {
namespace {

// A stored by columns: long pieces of its columns are read, and their bits transposed in squares.
void ColumnBits(const Primitives& simd, Live live, const StoredMatrix& a, const Range& rows,
                const Range& ks, uint64_t* bits, int64_t words) {
  constexpr int64_t kPiece = 2048, kPieceWords = kPiece / 64;
  for (int64_t k = ks.begin; k < ks.end; k += 64) {
    const int64_t height = std::min<int64_t>(64, ks.end - k);
    for (int64_t r = rows.begin; r < rows.end; r += kPiece) {
      const int64_t width = std::min(kPiece, rows.end - r);
      uint64_t found[64 * kPieceWords];
      for (int64_t i = 0; i < height; ++i) {
        const int64_t at = (k + i) * a.columns + r;
        simd.live_bits(live, a.a + at, a.factor ? a.factor + at : nullptr, width,
                       found + i * kPieceWords);
      }
      for (int64_t p = 0; p < BitWords(width); ++p) {
        uint64_t square[64] = {};
        for (int64_t i = 0; i < height; ++i) square[i] = found[i * kPieceWords + p];
        TransposeBits(square);
        uint64_t* const to = bits + (r - rows.begin + 64 * p) * words + (k - ks.begin) / 64;
        for (int64_t i = 0; i < std::min<int64_t>(64, width - 64 * p); ++i)
          to[i * words] = square[i];
      }
    }
  }
}

}  // namespace

void TransposeBits(uint64_t* words) {
  // At each step, off-diagonal quarters change places.
  uint64_t low = 0x00000000ffffffff;
  for (int half = 32; half > 0; half /= 2, low ^= low << half) {
    for (int first = 0; first < 64; first += 2 * half) {
      for (int i = first; i < first + half; ++i) {
        const uint64_t swapped = (words[i] >> half ^ words[i + half]) & low;
        words[i] ^= swapped << half;
        words[i + half] ^= swapped;
      }
    }
  }
}

StoredMatrix StoredMatrix::Part(int64_t first, int64_t n) const {
  StoredMatrix part = *this;
  const int64_t moved = columns ? first : first * k;
  part.count = n;
  if (rows) {
    part.rows += first;
  } else {
    part.a += moved;
    if (factor) part.factor += moved;
  }
  return part;
}

void MatrixBits(const Primitives& simd, Live live, const StoredMatrix& a, const Range& rows,
                const Range& ks, uint64_t* bits, int64_t words) {
  if (a.columns) return ColumnBits(simd, live, a, rows, ks, bits, words);
  for (int64_t r = rows.begin; r < rows.end; ++r, bits += words) {
    const float* const factor = a.factor ? a.Row(a.factor, r) + ks.begin : nullptr;
    simd.live_bits(live, a.Row(a.a, r) + ks.begin, factor, ks.end - ks.begin, bits);
  }
}

}  // namespace pitc
