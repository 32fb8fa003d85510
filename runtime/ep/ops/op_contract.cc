// contract: C[i] = act(A[rows[i]] @ B + bias) + residual[i], rows taken from and written to
// unpacked tensors as the plan says.
//
// Zeros of A may be skipped, or of B where that is computed when the model runs. A may be the ReLU
// of a product, which stays inside.
#include <algorithm>

#include "base/index.h"
#include "ops/gemm_operands.h"
#include "ops/operation.h"

namespace pitc {
namespace {

constexpr int64_t kRowUnit = 96;          // row blocks of the product in front
constexpr int64_t kMostRows = 512;        // of A at a time, for each thread
constexpr int64_t kMostHidden = 1 << 22;  // elements of A at a time, 16 MiB
constexpr int64_t kMostThreads = 8;       // that A grows with

class Contract final : public Operation {
 public:
  Contract(const ContractPlan& plan, Kernel inner, Contraction contraction)
      : plan_(plan), inner_(std::move(inner)), contraction_(std::move(contraction)) {}
  int InputCount() const override { return plan_.Places().count; }
  int OutputCount() const override { return ContractPlan::kOutputs; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const ContractPlan::Inputs in = plan_.Places();
    GemmOperands operands(run, plan_, scratch);
    operands.ReadLeft();
    if (plan_.right != ContractPlan::kPanels) {
      const StoredRight right = ReadStored(run, plan_);
      const int64_t columns = PanelCount(right.n) * kPanelWidth;
      const float* bias = ReadBias(run, in.bias, ProductOf(plan_), columns, scratch);
      operands.ReadRows();
      return contraction_.RunRight(run, operands.left(), right, bias, operands.target());
    }
    const Panels b1 =
        plan_.inner ? ReadPanels(run, in.b1, in.bias1, "b1", InnerOf(plan_), scratch) : Panels{};
    const Panels b = ReadPanels(run, in.b, in.bias, "b", ProductOf(plan_), scratch);
    operands.ReadRows();
    if (plan_.inner) return RunInner(run, operands.left(), b1, b, operands.target(), scratch);
    contraction_.RunLeft(run, operands.left(), nullptr, b, operands.target());
  }

 private:
  // Some rows at a time: the product in front also tells where its ReLU is 0.
  void RunInner(const RunContext& run, const LeftRows& left, const Panels& b1, const Panels& b,
                const Target& all, Arena::Scope& scratch) const {
    if (b1.width != kPanelWidth)  // one word of bits per panel
      Fail("expected b1 as panels of ", kPanelWidth, " columns, got ", b1.width);
    const int64_t hidden = plan_.k;
    const int64_t threads =
        std::min<int64_t>(run.ThreadsFor(GemmFlops(left.count, left.k, hidden)), kMostThreads);
    const int64_t fitting = threads * std::min(kMostRows, kMostHidden / hidden);
    const Blocks blocks = EvenBlocks(left.count, std::max(fitting, kRowUnit), kRowUnit);
    const int64_t most = std::min(blocks.size, left.count);
    Product({most, hidden}, "the inner product");
    auto* h = scratch.Array<float>(most * hidden);
    auto* bits = scratch.Array<uint64_t>(most * b1.count);
    const int32_t* every = Identity(most, scratch);
    for (int64_t i = 0; i < blocks.Count(); ++i) {
      const int64_t first = blocks.Begin(i), rows = blocks.End(i) - first;
      LeftRows part = left;
      part.rows += first;
      part.count = rows;
      RunGatherGemm(run, inner_, part, b1, {h, rows, hidden, every, nullptr}, bits);
      contraction_.RunLeft(run, {h, rows, hidden, every, rows}, bits, b, all.Part(first));
    }
  }

  const ContractPlan plan_;
  const Kernel inner_;
  const Contraction contraction_;
};

}  // namespace

std::unique_ptr<Operation> MakeContract(const ContractPlan& plan, Kernel inner,
                                        Contraction contraction) {
  return std::make_unique<Contract>(plan, std::move(inner), std::move(contraction));
}

}  // namespace pitc
