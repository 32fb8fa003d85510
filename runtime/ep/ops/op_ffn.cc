// ffn: C = act(H @ B2 + bias2) + residual with H = relu(A[rows] @ B1 + bias1), which stays inside.
#include <algorithm>

#include "base/index.h"
#include "ops/gemm_operands.h"
#include "ops/operation.h"

namespace pitc {
namespace {

constexpr int64_t kRowUnit = 96;          // row blocks of the first product
constexpr int64_t kMostRows = 512;        // of H at a time, for each thread
constexpr int64_t kMostHidden = 1 << 22;  // elements of H at a time, 16 MiB
constexpr int64_t kMostThreads = 8;       // that H grows with
constexpr int64_t kWordBits = 64;

class Ffn final : public Operation {
 public:
  Ffn(const FfnPlan& plan, Kernel first, Contraction contraction)
      : plan_(plan), first_(std::move(first)), contraction_(std::move(contraction)) {}
  int InputCount() const override {
    const GatherGemmPlan& last = plan_.second.gemm;
    return 3 + plan_.first.bias + last.bias + GemmOperands::RowInputCount(last);
  }
  int OutputCount() const override { return 1; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    int next = 0;
    const GatherGemmPlan& last = plan_.second.gemm;
    GemmOperands operands(run, plan_.first, last, scratch);
    operands.ReadLeft(&next);
    const Panels b1 = ReadPanels(run, &next, "b1", plan_.first, scratch);
    if (b1.width != kWordBits)  // one word of bits per panel
      Fail("expected b1 as panels of ", kWordBits, " columns, got ", b1.width);
    const Panels b2 = ReadPanels(run, &next, "b2", last, scratch);
    operands.ReadRows(&next);

    const LeftRows& left = operands.left();
    const int64_t hidden = plan_.first.n;
    const int64_t threads = std::min<int64_t>(
        run.ThreadsFor(GemmFlops(left.count, plan_.first.k, hidden)), kMostThreads);
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
      RunGatherGemm(run, first_, part, b1, {h, rows, hidden, every, nullptr}, bits);
      Target target = operands.target();
      target.rows += first;
      if (target.residual) target.residual += first * target.n;
      contraction_.Run(run, {h, rows, hidden, every, rows}, bits, b2, target);
    }
  }

 private:
  const FfnPlan plan_;
  const Kernel first_;
  const Contraction contraction_;
};

}  // namespace

std::unique_ptr<Operation> MakeFfn(const FfnPlan& plan, Kernel first, Contraction contraction) {
  return std::make_unique<Ffn>(plan, std::move(first), std::move(contraction));
}

}  // namespace pitc
