#include "few_rows.h"

#include <algorithm>

#include "cpu_targets.h"
#include "micro_tile_columns.h"

namespace pitc {
namespace {

// Inlined into functions with a target each, whose vectors it then uses.
#define PITC_INLINE inline __attribute__((always_inline))

constexpr int64_t kPiece = 512;  // elements of a row or column that are worked on at a time
constexpr int64_t kTogether = 4;

// Rows of A that lie behind each other: dot products, of some rows of A at once.
PITC_INLINE void MultiplyRows(const float* x, int64_t rows, const StoredMatrix& a, float* sums,
                              int64_t step) {
  for (int64_t i = 0; i < a.count; i += kTogether) {
    const int64_t here = std::min(kTogether, a.count - i);
    for (int64_t j = 0; j < here; ++j) std::fill_n(sums + (i + j) * step, rows, 0.0f);
    for (int64_t k = 0; k < a.k; k += kPiece) {
      const int64_t n = std::min(kPiece, a.k - k);
      float product[kTogether * kPiece];
      const float* s[kTogether];
      for (int64_t j = 0; j < kTogether; ++j) {
        const int64_t row = i + std::min(j, here - 1);  // the last one again where there are few
        s[j] = a.Row(a.a, row) + k;
        if (a.factor) {
          CopyProduct(s[j], a.Row(a.factor, row) + k, n, product + j * kPiece);
          s[j] = product + j * kPiece;
        }
      }
      const float *s0 = s[0], *s1 = s[1], *s2 = s[2], *s3 = s[3];
      for (int64_t r = 0; r < rows; ++r) {
        const float* const row = x + r * a.k + k;
        float sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
#pragma omp simd reduction(+ : sum0, sum1, sum2, sum3)
        for (int64_t c = 0; c < n; ++c) {
          sum0 += row[c] * s0[c];
          sum1 += row[c] * s1[c];
          sum2 += row[c] * s2[c];
          sum3 += row[c] * s3[c];
        }
        const float found[kTogether] = {sum0, sum1, sum2, sum3};
        for (int64_t j = 0; j < here; ++j) sums[(i + j) * step + r] += found[j];
      }
    }
  }
}

// Columns of A that lie behind each other: each is added to all sums, in ascending k.
PITC_INLINE void MultiplyColumns(const float* x, int64_t rows, const StoredMatrix& a, float* sums,
                                 int64_t step) {
  float total[kFewRows * kPiece];
  for (int64_t i = 0; i < a.count; i += kPiece) {
    const int64_t n = std::min(kPiece, a.count - i);
    std::fill_n(total, rows * kPiece, 0.0f);
    for (int64_t k = 0; k < a.k; k += kTogether) {
      const int64_t here = std::min(kTogether, a.k - k);
      float product[kTogether * kPiece];
      const float* s[kTogether];
      for (int64_t j = 0; j < kTogether; ++j) {
        const int64_t at = (k + std::min(j, here - 1)) * a.columns + i;
        s[j] = a.a + at;
        if (a.factor) {
          CopyProduct(s[j], a.factor + at, n, product + j * kPiece);
          s[j] = product + j * kPiece;
        }
      }
      for (int64_t r = 0; r < rows; ++r) {
        const float* const row = x + r * a.k + k;
        float* __restrict const to = total + r * kPiece;
        if (here == kTogether) {
          const float w = row[0], v = row[1], u = row[2], t = row[3];
          const float *s0 = s[0], *s1 = s[1], *s2 = s[2], *s3 = s[3];
#pragma omp simd
          for (int64_t c = 0; c < n; ++c) {
            const float sum = __builtin_fmaf(v, s1[c], __builtin_fmaf(w, s0[c], to[c]));
            to[c] = __builtin_fmaf(t, s3[c], __builtin_fmaf(u, s2[c], sum));
          }
        } else {
          for (int64_t j = 0; j < here; ++j)
            for (int64_t c = 0; c < n; ++c) to[c] = __builtin_fmaf(row[j], s[j][c], to[c]);
        }
      }
    }
    for (int64_t c = 0; c < n; ++c)
      for (int64_t r = 0; r < rows; ++r) sums[(i + c) * step + r] = total[r * kPiece + c];
  }
}

PITC_INLINE void Multiply(const float* x, int64_t rows, const StoredMatrix& a, float* sums,
                          int64_t step) {
  if (a.columns) return MultiplyColumns(x, rows, a, sums, step);
  MultiplyRows(x, rows, a, sums, step);
}

#if defined(__x86_64__)

PITC_V3 void MultiplyV3(const float* x, int64_t rows, const StoredMatrix& a, float* sums,
                        int64_t step) {
  Multiply(x, rows, a, sums, step);
}

PITC_V4 void MultiplyV4(const float* x, int64_t rows, const StoredMatrix& a, float* sums,
                        int64_t step) {
  Multiply(x, rows, a, sums, step);
}

#endif  // __x86_64__

}  // namespace

void MultiplyFew(CpuLevel level, const float* x, int64_t rows, const StoredMatrix& a, float* sums,
                 int64_t step) {
#if defined(__x86_64__)
  if (level == CpuLevel::kV4) return MultiplyV4(x, rows, a, sums, step);
  if (level == CpuLevel::kV3) return MultiplyV3(x, rows, a, sums, step);
#endif
  static_cast<void>(level);
  Multiply(x, rows, a, sums, step);
}

}  // namespace pitc
