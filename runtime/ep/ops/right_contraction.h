// A contraction whose right operand may hold zeros: detect, select, run.
//
// It is turned: C^T = S^T A^T, so that rows of S^T list their live micro-tiles, and A^T stands in
// panels. A skipped product is 0 only if A is finite, which the kernel `panels` sees.
#pragma once

#include "ops/block_lists.h"
#include "ops/decision.h"

namespace pitc {

// The kernels over lists make kTurnedColumns columns of C^T without an epilogue, `swrite` turns
// them back and has the epilogue.
struct RightKernels {
  Kernel dense;
  ListKernels listed;
  Kernel panels, swrite;
};

class RightContraction {
 public:
  RightContraction(const CostTable& costs, const Primitives& simd, RightKernels kernels,
                   SelectorOptions options)
      : costs_(costs), simd_(simd), kernels_(std::move(kernels)), options_(std::move(options)) {}

  // C = act(A @ S + bias) + residual, where `right` is S^T and every row of A and of C is taken.
  void Run(const RunContext& run, const LeftRows& left, const StoredMatrix& right,
           const float* bias, const Target& target) const;

 private:
  // True where nothing that lists could skip is worth counting all that lives; `unseen` is the work
  // if nothing lived.
  bool IsDense(const LeftRows& left, const StoredMatrix& right, const Work& unseen) const;
  void RunDense(const RunContext& run, const LeftRows& left, const StoredMatrix& right,
                const float* bias, const Target& target) const;
  void Finish(const float* sums, int64_t rows, int64_t first_column, int64_t first_row,
              const float* bias, const Target& target) const;

  const CostTable costs_;
  const Primitives& simd_;
  const RightKernels kernels_;
  const SelectorOptions options_;
};

}  // namespace pitc
