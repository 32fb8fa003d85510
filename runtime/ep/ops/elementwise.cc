#include "ops/elementwise.h"

#include <optional>

namespace pitc {

void CheckCounts(const ElementwisePlan& plan) {
  if (plan.kinds.size() > kMostOperands || plan.columns.size() > kMostResults)
    Fail("plan: ", plan.kinds.size(), " operands and ", plan.columns.size(),
         " results are too many");
}

ElementwiseRows CheckElementwise(const ElementwisePlan& plan,
                                 const std::array<Tensor, kMostOperands>& operands) {
  std::optional<Shape> found;
  for (size_t i = 0; i < plan.kinds.size(); ++i) {
    const bool flags = plan.kinds[i] == ElementwisePlan::kFlags;
    const Tensor& x = operands[i];
    if (flags) {
      Expect(x.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, x, "of bool");
    } else {
      ExpectNumbers(x, Element::kFloat32, 0);
    }
    if (!flags && plan.kinds[i] != ElementwisePlan::kWhole) continue;
    if (!found) found = x.shape;
    Expect(x.shape == *found, x, "of the shape of the other operands");
  }
  if (!found || found->rank == 0) Fail("elementwise: no operand of the shape of the result");
  const int last = found->rank - 1;
  const int64_t rows = found->Elements(0, last), n = found->dims[last];
  for (size_t i = 0; i < plan.kinds.size(); ++i) {
    const Tensor& x = operands[i];
    const int64_t count = x.shape.Elements();
    switch (plan.kinds[i]) {
      case ElementwisePlan::kRow:
        Expect(count == n, x, "of ", n, " elements");
        break;
      case ElementwisePlan::kColumn:
        Expect(count == rows, x, "of one element for each row");
        break;
      case ElementwisePlan::kNumber:
        Expect(count == 1, x, "of one element");
        break;
      default:
        break;
    }
  }
  Shape column = *found;
  column.dims[last] = 1;
  if (plan.by_rows) return {*found, column, rows, n};
  return {*found, column, 1, found->Elements()};
}

void ElementwiseRows::AddOperand(KernelCall* call, const ElementwisePlan& plan, size_t operand,
                                 const void* data) const {
  switch (plan.kinds[operand]) {
    case ElementwisePlan::kRow:
      call->Floats(data, {n});
      break;
    case ElementwisePlan::kColumn:
      call->Floats(data, {rows});
      break;
    case ElementwisePlan::kNumber:
      call->Floats(data, {1});
      break;
    case ElementwisePlan::kFlags:
      call->Words(data, 1, {rows, n});
      break;
    default:
      call->Floats(data, {rows, n});
  }
}

void ElementwiseRows::AddResult(KernelCall* call, const ElementwisePlan& plan, size_t result,
                                void* data) const {
  if (plan.columns[result] != 0) {
    call->Floats(data, {rows});
  } else {
    call->Floats(data, {rows, n});
  }
}

}  // namespace pitc
