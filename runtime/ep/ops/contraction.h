// A contraction of which an operand may hold zeros: detect, select, run.
#pragma once

#include "ops/block_lists.h"
#include "ops/decision.h"

namespace pitc {

class SparseOperand;

// The kernels of one contraction: the dense one; those over lists, if zeros are skipped; and of a
// right operand with zeros what makes panels of the left one, what turns the result, and what makes
// rows of its transpose, unless it lies so.
struct ContractionKernels {
  Kernel dense;
  ListKernels listed;
  Kernel panels, swrite, rows;
};

class Contraction {
 public:
  Contraction(const CostTable& costs, const Primitives& simd, ContractionKernels kernels,
              SelectorOptions options)
      : costs_(costs), simd_(simd), kernels_(std::move(kernels)), options_(std::move(options)) {}

  // C = act(A @ B + bias) + residual, where A may hold zeros. `bits`: [rows, BitWords(k)] of the
  // left rows where a kernel has made them, or null.
  void RunLeft(const RunContext& run, const LeftRows& given, const uint64_t* bits, const Panels& b,
               const Target& target) const;

  // True where zeros are left out if that pays.
  bool LooksForZeros() const { return static_cast<bool>(kernels_.listed); }
  // Of a product in `parts`, each by a matrix like b: false where none of them would leave out
  // anything, as far as some rows of all tell.
  bool MaySkip(const RunContext& run, const LeftRows& left, const Panels& b, int64_t parts) const;
  // Rows of float32 as words of bfloat16.
  LeftRows AsWords(const RunContext& run, const LeftRows& left, Arena::Scope& scratch) const;

  // C = act(A @ S + bias) + residual, where S may hold zeros, and every row of A and of C is taken.
  //
  // It is turned: C^T = S^T A^T, so that rows of S^T list their live micro-tiles, and A^T stands in
  // panels. A skipped product is 0 only if A is finite, which the kernel `panels` sees. The kernels
  // over lists make kTurnedColumns columns of C^T without an epilogue, `swrite` turns them back and
  // has the epilogue.
  void RunRight(const RunContext& run, const LeftRows& left, const StoredRight& right,
                const float* bias, const Target& target) const;

 private:
  SparseOperand OperandOf(const RunContext& run, const LeftRows& left, const uint64_t* bits) const;
  // The work as if nothing of it lived.
  Work UnseenOf(const SparseOperand& operand, const LeftRows& left, const Panels& b) const;
  // True where nothing that lists could skip of S is worth counting all that lives; `unseen` is the
  // work if nothing lived.
  bool IsRightDense(const RunContext& run, const LeftRows& left, const StoredRight& right,
                    const Work& unseen) const;
  void RunRightDense(const RunContext& run, const LeftRows& left, const StoredRight& right,
                     const float* bias, const Target& target) const;
  void TurnBack(const float* sums, int64_t rows, int64_t first_column, int64_t first_row,
                const float* bias, const Target& target) const;

  const CostTable costs_;
  const Primitives& simd_;
  const ContractionKernels kernels_;
  const SelectorOptions options_;
};

}  // namespace pitc
