// Two elementwise kernels of docs/plans.md, in float64 and as strict about arguments.
#include "kernel_args.h"

using pitc::test::Any;
using pitc::test::Args;
using pitc::test::Data;
using pitc::test::Tensor;

namespace {

struct Part {
  int64_t r0, r1, j0, j1;
};

Part ReadPart(Args& args) { return {args.Int(), args.Int(), args.Int(), args.Int()}; }

// Columns begin at whole vectors.
void Check(Args& args, const Part& part, int64_t rows, int64_t n) {
  args.Demand(0 <= part.r0 && part.r0 <= part.r1 && part.r1 <= rows, "rows");
  args.Demand(0 <= part.j0 && part.j0 % 16 == 0 && part.j0 <= part.j1 && part.j1 <= n, "columns");
}

// kinds whole, whole: Where(x0 <= 0, 0, x1).
int Flat(const Any* raw, int32_t count, int) {
  Args args(raw, count);
  const Tensor *x = args.Floats(2), *g = args.Floats(2), *y = args.Floats(2);
  const Part part = ReadPart(args);
  if (!args.Good()) return -1;
  const int64_t rows = y->shape[0], n = y->shape[1];
  for (const Tensor* t : {x, g}) args.Demand(t->shape[0] == rows && t->shape[1] == n, "shapes");
  Check(args, part, rows, n);
  if (!args.Good()) return -1;
  for (int64_t i = part.r0; i < part.r1; ++i) {
    for (int64_t j = part.j0; j < part.j1; ++j) {
      const int64_t at = i * n + j;
      Data<float>(y)[at] = Data<float>(x)[at] <= 0 ? 0 : Data<float>(g)[at];
    }
  }
  return 0;
}

// kinds whole, row, column, number, flags: t = x0 * x1, m = mean of t; y0 = Where(x4, t - m, x3),
// y1 = m + x2, one number for each row.
int Rows(const Any* raw, int32_t count, int) {
  Args args(raw, count);
  const Tensor *x = args.Floats(2), *w = args.Floats(1), *s = args.Floats(1),
               *number = args.Floats(1);
  const Tensor *flags = args.Array(pitc::tvm::kIntCode, 8, 2), *y = args.Floats(2);
  const Tensor* m = args.Floats(1);
  const Part part = ReadPart(args);
  if (!args.Good()) return -1;
  const int64_t rows = y->shape[0], n = y->shape[1];
  for (const Tensor* t : {x, flags}) args.Demand(t->shape[0] == rows && t->shape[1] == n, "shapes");
  args.Demand(w->shape[0] == n && s->shape[0] == rows && number->shape[0] == 1, "vectors");
  args.Demand(m->shape[0] == rows, "a result");
  Check(args, part, rows, n);
  args.Demand(part.j0 == 0 && part.j1 == n, "whole rows");
  if (!args.Good()) return -1;
  for (int64_t i = part.r0; i < part.r1; ++i) {
    const auto term = [&](int64_t j) {
      return static_cast<double>(Data<float>(x)[i * n + j]) * Data<float>(w)[j];
    };
    double sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += term(j);
    const double mean = sum / static_cast<double>(n);
    Data<float>(m)[i] = static_cast<float>(mean + Data<float>(s)[i]);
    for (int64_t j = 0; j < n; ++j) {
      const bool set = Data<int8_t>(flags)[i * n + j];
      Data<float>(y)[i * n + j] = set ? static_cast<float>(term(j) - mean) : *Data<float>(number);
    }
  }
  return 0;
}

// kinds left, right: x0 * x1.
int Gated(const Any* raw, int32_t count, int) {
  Args args(raw, count);
  const Tensor *a = args.Floats(2), *b = args.Floats(2), *y = args.Floats(2);
  const Part part = ReadPart(args);
  if (!args.Good()) return -1;
  const int64_t rows = y->shape[0], n = y->shape[1];
  for (const Tensor* t : {a, b}) args.Demand(t->shape[0] == rows && t->shape[1] == 2 * n, "shapes");
  Check(args, part, rows, n);
  args.Demand(part.j0 == 0 && part.j1 == n, "whole rows");
  if (!args.Good()) return -1;
  for (int64_t i = part.r0; i < part.r1; ++i) {
    for (int64_t j = 0; j < n; ++j)
      Data<float>(y)[i * n + j] =
          Data<float>(a)[2 * i * n + j] * Data<float>(b)[(2 * i + 1) * n + j];
  }
  return 0;
}

}  // namespace

KERNEL(elementwise_gated, Gated, 0)
KERNEL(elementwise_flat, Flat, 0)
KERNEL(elementwise_rows, Rows, 0)
