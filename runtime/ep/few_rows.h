// Products of few rows by a matrix that is read once, where it lies: memory is the limit.
#pragma once

#include "micro_tiles.h"

namespace pitc {

// Of more rows than these, a product is faster by panels of A. A alone, stored by rows, is packed
// fast: dot products fall behind sooner.
constexpr int64_t kFewRows = 48;
inline int64_t MostFewRows(const StoredMatrix& a) { return a.columns || a.factor ? kFewRows : 40; }

// sums[i * step + r] = sum over k of x[r, k] * A[i, k]; x is [rows, A.k], rows <= kFewRows <= step.
void MultiplyFew(CpuLevel level, const float* x, int64_t rows, const StoredMatrix& a, float* sums,
                 int64_t step);

}  // namespace pitc
