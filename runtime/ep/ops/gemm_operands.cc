#include "ops/gemm_operands.h"

#include <algorithm>

#include "base/index.h"
#include "base/split.h"

namespace pitc {

const float* ReadBias(const RunContext& run, int place, const ProductPlan& plan, int64_t columns,
                      Arena::Scope& scratch) {
  const float* bias = nullptr;
  if (plan.bias) {
    const Tensor t = run.FloatInput(place, "bias", 1, 1);
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

Panels ReadPanels(const RunContext& run, int b, int bias, const char* role, const ProductPlan& plan,
                  Arena::Scope& scratch) {
  const Tensor panels = run.Input(b, role);
  const auto [count, k, width] = CheckPanels(plan, Element::kFloat32, panels);
  const float* padded = ReadBias(run, bias, plan, count * width, scratch);
  return {panels.Floats(), count, k, width, padded, plan.rounded};
}

void StoredRight::AddTo(KernelCall* call) const {
  const int64_t rows = turned ? n : k, columns = turned ? k : n;
  call->Floats(s, {rows, columns});
  if (factor) call->Floats(factor, {rows, columns});
}

StoredRight ReadStored(const RunContext& run, const ContractPlan& plan) {
  const bool turned = plan.right == ContractPlan::kNk;
  const int64_t rows = turned ? plan.n : plan.k, columns = turned ? plan.k : plan.n;
  const auto read = [&](int place, const char* role) {
    const Tensor s = run.FloatInput(place, role, 2, 2);
    Expect(s.shape.dims[0] == rows && s.shape.dims[1] == columns, s, "as float32 [", rows, ", ",
           columns, "]");
    Product({rows, columns}, role);
    return s.Floats();
  };
  const ContractPlan::Inputs in = plan.Places();
  StoredRight right{read(in.b, "b"), nullptr, plan.k, plan.n, turned, plan.factor == 2};
  if (plan.factor) right.factor = read(in.factor, "factor");
  return right;
}

void GemmOperands::ReadLeft() {
  a_ = run_.Input(plan_.Places().a, "a");
  left_.stored = left_.count = CheckLeft(plan_, a_);
  left_.k = WordsOf(LeftColumns(plan_), plan_.stored.a);
  left_.data = a_.Floats();
  if (plan_.input_relu) left_.live = Live::kPositive;
  if (plan_.stored.a) left_.live = Live::kWords;
}

void GemmOperands::ReadRows() {
  const ProductRows<Tensor> lists = ReadProductRows(run_, plan_, a_, left_.stored, scratch_);
  const int64_t t = lists.count, n = plan_.n;
  left_.count = t;
  target_.stored = lists.stored;
  target_.n = n;
  if (plan_.residual) target_.residual = lists.residual.Floats();
  if (plan_.stored.result) target_.type = Element::kBfloat16;
  const int bytes = RecordOf(target_.type).bytes;
  target_.data = run_.Output(0, lists.shape, bytes, scratch_);
  if (plan_.scatter) ZeroOtherRows(run_, target_.data, n * bytes, target_.stored, lists.rows, t);
  const int32_t* every = plan_.gather && plan_.scatter ? nullptr : Identity(t, scratch_);
  left_.rows = plan_.gather ? lists.rows : every;
  target_.rows = plan_.scatter ? lists.rows : every;
}

void RunGatherGemm(const RunContext& run, const Kernel& kernel, const LeftRows& left,
                   const Panels& b, const Target& target, uint64_t* bits) {
  const int64_t t = left.count;
  if (t == 0) return;
  const int threads = run.ThreadsFor(GemmFlops(t, b.k, b.count * b.width));
  const GemmSplit split = b.Split(t, kernel, threads);
  run.Each(split.Count(), split.parallel, [&](int64_t task) {
    const GemmSplit::Part part = split.At(task);
    KernelCall call;
    call.Floats(left.data, {left.stored, left.k}).Int32s(left.rows, {t});
    call.Floats(b.data, {b.count, b.k, b.width}).Floats(b.bias, {b.count * b.width});
    if (target.residual) call.Floats(target.residual, {t, target.n});
    call.Int32s(target.rows, {t});
    call.Numbers(target.data, target.type, {target.stored, target.n});
    if (bits) call.Int64s(bits, {t, b.count});
    call.Int(part.row_begin).Int(part.row_end).Int(part.panel_begin).Int(part.panel_end);
    call.Run(kernel);
  });
}

}  // namespace pitc
