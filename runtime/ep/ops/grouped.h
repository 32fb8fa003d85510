// What grouped checks and knows of its rows before anything is sorted, wherever the tensors lie.
#pragma once

#include <cstdint>

#include "base/index.h"
#include "ops/product.h"
#include "ort/tensor.h"
#include "plan/plan.h"

namespace pitc {

// A is [t, shared, m, k], groups are [t, j].
struct GroupedRows {
  int64_t t, j, m;
  int64_t sharing;  // points that share rows of A
  int64_t stored;   // rows of A
  int64_t count;    // of C
  int64_t Points() const { return t * j; }
};

// Throws Failure unless these are rows and their groups.
inline GroupedRows CheckGrouped(const GroupedPlan& plan, const Tensor& a, const Tensor& group) {
  ExpectNumbers(a, plan.dtype, 4, 4);
  const int64_t t = a.shape.dims[0], shared = a.shape.dims[1], m = a.shape.dims[2];
  const bool is_list = group.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 && group.shape.rank == 2;
  Expect(is_list && group.shape.dims[0] == t, group, "as int64 [", t, ", J]");
  const int64_t j = group.shape.dims[1];
  Expect(a.shape.dims[3] == plan.k && (shared == 1 || shared == j), a, "as ",
         RecordOf(plan.dtype).name, " [", t, ", ", j, " or 1, M, ", plan.k, "]");
  const int64_t stored = Numbered(Product({t, shared, m}, "rows of a"), "rows of a");
  const int64_t count = Numbered(Product({t, j, m}, "rows of the product"), "rows of c");
  Product({stored, plan.k}, "a");
  Product({count, plan.n}, "the product");
  return {t, j, m, shared == j ? 1 : j, stored, count};
}

// The group that the number of point i says: from the end where it is below 0.
inline int64_t GroupOf(const GroupedPlan& plan, int64_t given, int64_t i) {
  const int64_t group = given < 0 ? given + plan.groups : given;
  if (group < 0 || group >= plan.groups)
    Fail("expected groups from ", -plan.groups, " to ", plan.groups - 1, ", got ", given, " at ",
         i);
  return group;
}

}  // namespace pitc
