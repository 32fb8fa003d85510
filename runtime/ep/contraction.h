// A contraction whose left operand may hold zeros: detect, select, run.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "gemm_operands.h"
#include "trace.h"

namespace pitc {

// The kernels of one contraction: the dense one, and one per family of micro-tiles.
struct ContractionKernels {
  Kernel dense, row, tile, block;
};

// How decisions are made and told.
struct SelectorOptions {
  std::string node;                // its name, for the trace
  std::shared_ptr<Trace> trace;    // or null
  std::optional<Variant> variant;  // run this one where it is offered
};

class Contraction {
 public:
  Contraction(const CostTable& costs, CpuLevel level, ContractionKernels kernels,
              SelectorOptions options)
      : costs_(costs), level_(level), kernels_(std::move(kernels)), options_(std::move(options)) {}

  // C = act(A @ B + bias) + residual. `bits`: [rows, BitWords(k)] of the left rows where a kernel
  // has made them, or null.
  void Run(const RunContext& run, const LeftRows& left, const uint64_t* bits, const Panels& b,
           const Target& target) const;

 private:
  // Counts live micro-tiles. Returns the bits of all rows, or null where it has read a sample only.
  const uint64_t* Measure(const RunContext& run, const LeftRows& left, const uint64_t* bits,
                          Arena::Scope& scratch, Work* work) const;
  void RunSparse(const RunContext& run, const LeftRows& left, const uint64_t* bits, const Panels& b,
                 const Target& target, const Work& work, Variant variant) const;
  bool OffersSparse() const;

  const CostTable costs_;
  const CpuLevel level_;
  const ContractionKernels kernels_;
  const SelectorOptions options_;
};

}  // namespace pitc
