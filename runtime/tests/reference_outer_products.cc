// The outer_products kernels of docs/plans.md, in float64 and as strict about arguments.
#include "kernel_args.h"

using pitc::test::Any;
using pitc::test::Args;
using pitc::test::Below;
using pitc::test::Data;
using pitc::test::Tensor;

namespace {

int OuterProducts(const Any* raw, int32_t count, int) {
  constexpr int64_t kGroup = 16, kSide = 8;
  Args args(raw, count);
  const Tensor *a = args.Floats(3), *b = args.Floats(2);
  const Tensor *columns = args.Int32s(1), *starts = args.Int32s(1), *c = args.Floats(2);
  const int64_t height = args.Int(), n0 = args.Int(), n1 = args.Int(), lines = args.Int();
  if (!args.Good()) return -1;
  const int64_t k = b->shape[0], n = b->shape[1], rows = c->shape[0], blocks = starts->shape[0] - 1;
  const int64_t depth = (k + kSide - 1) / kSide * kSide;
  args.Demand(
      a->shape[0] == (rows + kGroup - 1) / kGroup && a->shape[1] == depth && a->shape[2] == kGroup,
      "groups of A");
  args.Demand(k > 0 && c->shape[1] == n && rows > 0, "shapes");
  args.Demand(height == 1 || height == 16 || height == 32 || height == 64, "height");
  args.Demand(height > 0 && blocks == (rows + height - 1) / height, "blocks");
  args.Demand(0 <= n0 && n0 % 64 == 0 && n0 < n1 && n1 <= n, "columns");
  args.Demand(lines == 1 || (lines == 0 && height > 1), "lines");
  if (!args.Good()) return -1;
  const auto* const listed = Data<int32_t>(columns);
  const auto* const first = Data<int32_t>(starts);
  args.Demand(first[0] == 0 && first[blocks] == columns->shape[0] &&
                  Below(listed, 0, columns->shape[0], n1),
              "lists");
  if (!args.Good()) return -1;
  for (int64_t r = 0; r < rows; ++r) {
    const float* const group = Data<float>(a) + r / kGroup * depth * kGroup + r % kGroup;
    for (int64_t i = k; i < depth; ++i) args.Demand(group[i * kGroup] == 0, "zeros behind A");
    for (int32_t z = first[r / height]; z < first[r / height + 1]; ++z) {
      const int32_t column = listed[z];
      args.Demand(column >= n0 && (z == first[r / height] || column > listed[z - 1]), "a list");
      if (!args.Good()) return -1;
      double sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += static_cast<double>(group[i * kGroup]) * Data<float>(b)[i * n + column];
      float& to = Data<float>(c)[r * n + column];
      to = static_cast<float>(to + sum);
    }
  }
  return args.Good() ? 0 : -1;
}

int Dense(const Any* raw, int32_t count, int) {
  constexpr int64_t kGroup = 6, kSide = 8;
  Args args(raw, count);
  const Tensor *a = args.Floats(3), *b = args.Floats(2), *c = args.Floats(2);
  const int64_t n0 = args.Int(), n1 = args.Int(), adds = args.Int();
  if (!args.Good()) return -1;
  const int64_t k = b->shape[0], n = b->shape[1], rows = c->shape[0];
  const int64_t groups = (rows + kGroup - 1) / kGroup, depth = (k + kSide - 1) / kSide * kSide;
  args.Demand(a->shape[0] == groups && a->shape[1] == depth && a->shape[2] == kGroup,
              "groups of A");
  args.Demand(k > 0 && c->shape[1] == n && rows > 0, "shapes");
  args.Demand(0 <= n0 && n0 % 64 == 0 && n0 < n1 && n1 <= n, "columns");
  args.Demand(adds == 0 || adds == 1, "adds");
  if (!args.Good()) return -1;
  for (int64_t r = 0; r < rows; ++r) {
    const float* const group = Data<float>(a) + r / kGroup * depth * kGroup + r % kGroup;
    for (int64_t column = n0; column < n1; ++column) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += static_cast<double>(group[i * kGroup]) * Data<float>(b)[i * n + column];
      float& to = Data<float>(c)[r * n + column];
      to = static_cast<float>((adds ? to : 0) + sum);
    }
  }
  return 0;
}

}  // namespace

KERNEL(outer_products, OuterProducts, 0)
KERNEL(outer_products_dense, Dense, 0)
