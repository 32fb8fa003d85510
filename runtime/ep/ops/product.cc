#include "ops/product.h"

#include <algorithm>
#include <numeric>

namespace pitc {

int64_t CheckLeft(const ContractPlan& plan, const Tensor& a) {
  ExpectNumbers(a, plan.stored.a ? Element::kBfloat16 : plan.dtype, plan.gather ? 2 : 1);
  const int lead = a.shape.rank - 1;
  const int64_t k = LeftColumns(plan);
  Expect(a.shape.dims[lead] == k, a, "of last dimension ", k);
  const int64_t stored = Numbered(a.shape.Elements(0, lead), "rows of a");
  Product({stored, k}, "a");
  return stored;
}

PanelExtents CheckPanels(const ProductPlan& plan, Element type, const Tensor& b) {
  if (plan.rounded) {  // of words of two numbers
    const int64_t count = PanelCount(plan.n), pairs = StepCount(plan.k, 2);
    ExpectNumbers(b, Element::kBfloat16, 3, 3);
    Expect(
        b.shape.dims[0] == count && b.shape.dims[1] == pairs && b.shape.dims[2] == 2 * kPanelWidth,
        b, "as [", count, ", ", pairs, ", ", 2 * kPanelWidth, "]");
    Product({count, pairs, kPanelWidth}, b.role);
    return {count, pairs, kPanelWidth};
  }
  ExpectNumbers(b, type, 3, 3);
  const int64_t count = b.shape.dims[0], width = b.shape.dims[2];
  Expect(width > 0 && b.shape.dims[1] == plan.k && count == (plan.n + width - 1) / width, b,
         "as [ceil(", plan.n, " / NR), ", plan.k, ", NR]");
  Product({count, plan.k, width}, b.role);
  return {count, plan.k, width};
}

void CheckDomain(const ContractPlan& plan, const Tensor& a, const Shape& domain) {
  const int lead = a.shape.rank - 1;
  if (lead == domain.rank && std::equal(domain.dims, domain.dims + lead, a.shape.dims)) return;
  // In an `a` of other extents the rows would be other points.
  Shape expected = domain;
  expected.Add(LeftColumns(plan));
  Expect(false, a, "as ", Describe(a.type, expected), " (one row per point of the mask)");
}

const int32_t* Identity(int64_t n, Arena::Scope& scratch) {
  auto* numbers = scratch.Array<int32_t>(n);
  std::iota(numbers, numbers + n, 0);
  return numbers;
}

}  // namespace pitc
