// What contractions check and know before anything is computed, wherever the tensors lie.
#pragma once

#include <cstdint>

#include "base/arena.h"
#include "base/index.h"
#include "ort/tensor.h"
#include "plan/plan.h"

namespace pitc {

// How many rows `a` has. Throws Failure unless it is what the plan multiplies.
int64_t CheckLeft(const ContractPlan& plan, const Tensor& a);

struct PanelExtents {
  int64_t count, k, width;
};
// Throws Failure unless `b` is a product's right operand.
PanelExtents CheckPanels(const ProductPlan& plan, Element type, const Tensor& b);

// Throws Failure unless rows that are numbered in the domain are rows of `a`.
void CheckDomain(const ContractPlan& plan, const Tensor& a, const Shape& domain);

// What stands behind the right operands, and what follows for the output.
template <class Input>
struct ProductRows {
  Input residual;
  Input list;                     // of rows of the domain, if the plan has one
  const int32_t* rows = nullptr;  // a copy of them, checked; null where there are none to check
  int64_t count = 0;              // of the product
  int64_t stored = 0;             // rows of the output
  Shape shape;                    // of the output
};

// Reads those inputs. `run` reads and copies them; `a` has `stored` rows.
template <class Run, class Input>
ProductRows<Input> ReadProductRows(const Run& run, const ContractPlan& plan, const Input& a,
                                   int64_t stored, Arena::Scope& scratch) {
  const ContractPlan::Inputs in = plan.Places();
  ProductRows<Input> out;
  out.count = stored;
  if (plan.residual) {
    out.residual = run.Input(in.residual, "residual");
    ExpectNumbers(out.residual, plan.dtype, 1);
  }
  Shape domain;  // that rows are numbered in
  if (plan.gather || plan.scatter) {
    const Input list = out.list = run.Int32Input(in.rows, "rows", {-1});
    out.rows = run.Copy(list, Numbered(list.shape.dims[0], "rows"), scratch);
    domain = run.MaskInput(in.live, "live").shape;
    if (plan.gather) {
      CheckDomain(plan, a, domain);
      out.count = list.shape.dims[0];
      if (out.rows) CheckBelow(out.rows, out.count, stored, "rows");
    } else {
      Expect(list.shape.dims[0] == stored, list, "as int32 [", stored, "], one per row of a");
    }
  }
  const int64_t t = out.count, n = plan.n;
  if (plan.residual) {
    const Shape& shape = out.residual.shape;
    const int last = shape.rank - 1;
    Expect(shape.dims[last] == n && shape.Elements(0, last) == t, out.residual, "of ", t,
           " rows of ", n);
  }
  Product({t, n}, "the product");
  out.stored = t;
  if (plan.scatter) {
    out.stored = Numbered(domain.Elements(), "points of live");
    Product({out.stored, n}, "the output");
    if (out.rows) CheckAscending(out.rows, t, out.stored, "rows");
    out.shape.Append(domain, 0, domain.rank);
  } else if (plan.gather) {
    out.shape.Add(t);
  } else {
    out.shape.Append(a.shape, 0, a.shape.rank - 1);
  }
  out.shape.Add(n);
  return out;
}

// 0, 1, .., n - 1.
const int32_t* Identity(int64_t n, Arena::Scope& scratch);

}  // namespace pitc
