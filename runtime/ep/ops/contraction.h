// A contraction whose left operand may hold zeros: detect, select, run.
#pragma once

#include "ops/block_lists.h"
#include "ops/decision.h"

namespace pitc {

// The kernels of one contraction: the dense one, and those over lists.
struct ContractionKernels {
  Kernel dense;
  ListKernels listed;
};

class Contraction {
 public:
  Contraction(const CostTable& costs, const Primitives& simd, ContractionKernels kernels,
              SelectorOptions options)
      : costs_(costs), simd_(simd), kernels_(std::move(kernels)), options_(std::move(options)) {}

  // C = act(A @ B + bias) + residual. `bits`: [rows, BitWords(k)] of the left rows where a kernel
  // has made them, or null.
  void Run(const RunContext& run, const LeftRows& left, const uint64_t* bits, const Panels& b,
           const Target& target) const;

 private:
  const CostTable costs_;
  const Primitives& simd_;
  const ContractionKernels kernels_;
  const SelectorOptions options_;
};

}  // namespace pitc
