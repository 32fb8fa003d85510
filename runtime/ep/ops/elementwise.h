// What elementwise checks and knows before anything is computed, wherever the tensors lie.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/kernel_library.h"
#include "ort/tensor.h"
#include "plan/plan.h"

namespace pitc {

constexpr size_t kMostOperands = 8, kMostResults = 4;

// Throws Failure for a plan with more operands or results.
void CheckCounts(const ElementwisePlan& plan);

// Rows are the places of all axes but the last. Where nothing depends on them, all elements are one
// row.
struct ElementwiseRows {
  Shape whole, column;  // of results
  int64_t rows, n;      // n elements each

  const Shape& Of(const ElementwisePlan& plan, size_t result) const {
    return plan.columns[result] != 0 ? column : whole;
  }
  // As kernels take them. Of a half both are there.
  void AddOperand(KernelCall* call, const ElementwisePlan& plan, size_t operand,
                  const void* data) const;
  void AddResult(KernelCall* call, const ElementwisePlan& plan, size_t result, void* data) const;
};

// Throws Failure unless operands are as the plan says: whole ones of one shape, that of the result.
ElementwiseRows CheckElementwise(const ElementwisePlan& plan,
                                 const std::array<Tensor, kMostOperands>& operands);

// The operands of a run.
template <class Run, class Input>
ElementwiseRows ReadElementwise(const Run& run, const ElementwisePlan& plan, Input* operands) {
  std::array<Tensor, kMostOperands> checked;
  for (size_t i = 0; i < plan.kinds.size(); ++i) {
    const bool flags = plan.kinds[i] == ElementwisePlan::kFlags;
    const int place = static_cast<int>(i);
    operands[i] = flags ? run.MaskInput(place, "flags") : run.Input(place, "an operand");
    checked[i] = operands[i];
  }
  return CheckElementwise(plan, checked);
}

}  // namespace pitc
