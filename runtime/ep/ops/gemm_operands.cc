#include "ops/gemm_operands.h"

#include <algorithm>
#include <numeric>

#include "base/index.h"
#include "base/split.h"

namespace pitc {

const float* ReadBias(const RunContext& run, int* next, const ProductPlan& plan, int64_t columns,
                      Arena::Scope& scratch) {
  const float* bias = nullptr;
  if (plan.bias) {
    const Tensor t = run.FloatInput((*next)++, "bias", 1, 1);
    Expect(t.shape.dims[0] == plan.n, t, "as float32 [", plan.n, "]");
    bias = t.Floats();
  }
  if (bias && columns == plan.n) return bias;
  auto* padded = scratch.Array<float>(columns);
  const int64_t given = bias ? plan.n : 0;
  std::copy_n(bias, given, padded);
  std::fill(padded + given, padded + columns, 0.0f);
  return padded;
}

Panels ReadPanels(const RunContext& run, int* next, const char* role, const ProductPlan& plan,
                  Arena::Scope& scratch) {
  const Tensor b = run.FloatInput((*next)++, role, 3, 3);
  const int64_t panels = b.shape.dims[0], width = b.shape.dims[2];
  Expect(width > 0 && b.shape.dims[1] == plan.k && panels == (plan.n + width - 1) / width, b,
         "as [ceil(", plan.n, " / NR), ", plan.k, ", NR]");
  Product({panels, plan.k, width}, role);

  const float* const bias = ReadBias(run, next, plan, panels * width, scratch);
  return {b.Floats(), panels, plan.k, width, bias};
}

void StoredRight::AddTo(KernelCall* call) const {
  const int64_t rows = order == Order::kNK ? n : k, columns = order == Order::kNK ? k : n;
  call->Floats(s, {rows, columns});
  if (factor) call->Floats(factor, {rows, columns});
}

StoredRight ReadStored(const RunContext& run, int* next, const ContractPlan& plan) {
  const auto [k, n, bias] = plan.product;
  const int64_t rows = plan.order == Order::kNK ? n : k, columns = plan.order == Order::kNK ? k : n;
  const auto read = [&, next](const char* role) {
    const Tensor s = run.FloatInput((*next)++, role, 2, 2);
    Expect(s.shape.dims[0] == rows && s.shape.dims[1] == columns, s, "as float32 [", rows, ", ",
           columns, "]");
    Product({rows, columns}, role);
    return s.Floats();
  };
  StoredRight right{read("s"), nullptr, k, n, plan.order, plan.mask};
  if (plan.factor) right.factor = read("factor");
  return right;
}

void GemmOperands::ReadLeft(int* next) {
  a_ = run_.FloatInput((*next)++, "a", plan_.gather ? 2 : 1);
  const int lead = a_.shape.rank - 1;
  left_.k = plan_.inner ? plan_.inner->k : plan_.product.k;
  Expect(a_.shape.dims[lead] == left_.k, a_, "of last dimension ", left_.k);
  left_.data = a_.Floats();
  if (plan_.relu) left_.live = Live::kPositive;
  left_.stored = left_.count = Numbered(a_.shape.Elements(0, lead), "rows of a");
  Product({left_.stored, left_.k}, "a");
}

void GemmOperands::ReadRows(int* next) {
  Tensor residual;
  if (plan_.residual) residual = run_.FloatInput((*next)++, "residual", 1);
  const int32_t* rows = nullptr;
  Shape domain;  // that rows are numbered in
  if (plan_.gather || plan_.scatter) {
    const Tensor list = run_.Int32Input((*next)++, "rows", {-1});
    rows = CopyOf(list.Int32s(), Numbered(list.shape.dims[0], "rows"), scratch_);
    domain = run_.MaskInput((*next)++, "live").shape;
    if (plan_.gather) {
      CheckDomain(domain);
      left_.count = list.shape.dims[0];
      CheckBelow(rows, left_.count, left_.stored, "rows");
    } else {
      Expect(list.shape.dims[0] == left_.stored, list, "as int32 [", left_.stored,
             "], one per row of a");
    }
  }
  const int64_t t = left_.count, n = plan_.product.n;
  if (plan_.residual) {
    const int last = residual.shape.rank - 1;
    Expect(residual.shape.dims[last] == n && residual.shape.Elements(0, last) == t, residual, "of ",
           t, " rows of ", n);
    target_.residual = residual.Floats();
  }
  Product({t, n}, "the product");

  Shape shape;
  target_.stored = t;
  target_.n = n;
  if (plan_.scatter) {
    target_.stored = Numbered(domain.Elements(), "points of live");
    Product({target_.stored, n}, "the output");
    CheckAscending(rows, t, target_.stored, "rows");
    shape.Append(domain, 0, domain.rank);
  } else if (plan_.gather) {
    shape.Add(t);
  } else {
    shape.Append(a_.shape, 0, a_.shape.rank - 1);
  }
  shape.Add(n);
  target_.data = static_cast<float*>(run_.Output(0, shape, sizeof(float), scratch_));
  if (plan_.scatter) {
    const int64_t row_bytes = n * static_cast<int64_t>(sizeof(float));
    ZeroOtherRows(run_, target_.data, row_bytes, target_.stored, rows, t);
  }
  const int32_t* every = plan_.gather && plan_.scatter ? nullptr : Identity(t, scratch_);
  left_.rows = plan_.gather ? rows : every;
  target_.rows = plan_.scatter ? rows : every;
}

// Rows are numbered in the domain: in an `a` of other extents they would be other points.
void GemmOperands::CheckDomain(const Shape& domain) const {
  const int lead = a_.shape.rank - 1;
  if (lead == domain.rank && std::equal(domain.dims, domain.dims + lead, a_.shape.dims)) return;
  Shape expected = domain;
  expected.Add(left_.k);
  Expect(false, a_, "as ", Describe(a_.type, expected), " (one row per point of the mask)");
}

void RunGatherGemm(const RunContext& run, const Kernel& kernel, const LeftRows& left,
                   const Panels& b, const Target& target, uint64_t* bits) {
  const int64_t t = left.count;
  if (t == 0) return;
  const GemmSplit split = SplitGemm(t, left.k, b.count, b.width,
                                    run.ThreadsFor(GemmFlops(t, left.k, b.count * b.width)));
  run.Each(split.Count(), split.parallel, [&](int64_t task) {
    const GemmSplit::Part part = split.At(task);
    KernelCall call;
    call.Floats(left.data, {left.stored, left.k}).Int32s(left.rows, {t});
    call.Floats(b.data, {b.count, b.k, b.width}).Floats(b.bias, {b.count * b.width});
    if (target.residual) call.Floats(target.residual, {t, target.n});
    call.Int32s(target.rows, {t}).Floats(target.data, {target.stored, target.n});
    if (bits) call.Int64s(bits, {t, b.count});
    call.Int(part.row_begin).Int(part.row_end).Int(part.panel_begin).Int(part.panel_end);
    call.Run(kernel);
  });
}

const int32_t* Identity(int64_t n, Arena::Scope& scratch) {
  auto* numbers = scratch.Array<int32_t>(n);
  std::iota(numbers, numbers + n, 0);
  return numbers;
}

}  // namespace pitc
