#include "ops/elementwise.h"

#include <optional>

namespace pitc {
namespace {

bool IsHalf(size_t kind) {
  return kind == ElementwisePlan::kLeft || kind == ElementwisePlan::kRight;
}

// The shape of a result, as an operand of a kind tells it; of others nothing.
std::optional<Shape> ToldBy(size_t kind, const Tensor& x) {
  if (kind == ElementwisePlan::kWhole || kind == ElementwisePlan::kFlags) return x.shape;
  if (!IsHalf(kind)) return std::nullopt;
  Shape half = x.shape;
  Expect(half.rank > 0 && half.dims[half.rank - 1] % 2 == 0, x, "of rows of two halves");
  half.dims[half.rank - 1] /= 2;
  return half;
}

}  // namespace

void CheckCounts(const ElementwisePlan& plan) {
  if (plan.kinds.size() > kMostOperands || plan.columns.size() > kMostResults)
    Fail("plan: ", plan.kinds.size(), " operands and ", plan.columns.size(),
         " results are too many");
  for (size_t kind : plan.kinds)
    if (IsHalf(kind) && !plan.by_rows) Fail("plan: halves of rows without by_rows=1");
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
    const std::optional<Shape> told = ToldBy(plan.kinds[i], x);
    if (!told) continue;
    if (!found) found = told;
    Expect(*told == *found, x, "of the shape of the other operands");
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
    case ElementwisePlan::kLeft:
    case ElementwisePlan::kRight:
      call->Floats(data, {rows, 2 * n});
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
