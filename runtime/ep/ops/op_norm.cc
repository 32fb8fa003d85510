// norm: rows that are normed, as float32 and as bfloat16.
#include <algorithm>

#include "base/split.h"
#include "ops/operation.h"

namespace pitc {
namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 17;   // of x, for one task
constexpr int64_t kSerialBytes = int64_t{1} << 18;  // about 20 us on one thread

class Norm final : public Operation {
 public:
  Norm(const NormPlan& plan, Kernel kernel) : plan_(plan), kernel_(std::move(kernel)) {}
  int InputCount() const override { return plan_.Places().count; }
  int OutputCount() const override { return NormPlan::kOutputs; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const NormPlan::Inputs in = plan_.Places();
    const Tensor x = run.FloatInput(in.x, "x", 1);
    const int64_t n = plan_.n, rows = x.shape.Elements(0, x.shape.rank - 1);
    Expect(x.shape.dims[x.shape.rank - 1] == n, x, "of last dimension ", n);
    const Tensor gamma = Factor(run, in.gamma, "gamma");
    const Tensor beta = plan_.bias ? Factor(run, in.beta, "beta") : Tensor{};
    void* const floats = run.IsRead(0) ? run.Output(0, x.shape, sizeof(float), scratch) : nullptr;
    void* const halves =
        run.IsRead(1) ? run.Output(1, x.shape, sizeof(uint16_t), scratch) : nullptr;
    const int64_t row_bytes = n * static_cast<int64_t>(sizeof(float));
    const Blocks blocks = EvenBlocks(rows, std::max<int64_t>(1, kBlockBytes / row_bytes), 1);
    run.Each(blocks.Count(), rows * row_bytes > kSerialBytes, [&](int64_t block) {
      KernelCall call;
      call.Floats(x.data, {rows, n}).Floats(gamma.data, {n});
      if (plan_.bias) call.Floats(beta.data, {n});
      call.Floats(floats, {floats ? rows : 0, n});
      call.Numbers(halves, Element::kBfloat16, {halves ? rows : 0, n});
      call.Float(plan_.epsilon).Int(floats != nullptr).Int(halves != nullptr);
      call.Int(blocks.Begin(block)).Int(blocks.End(block));
      call.Run(kernel_);
    });
  }

 private:
  Tensor Factor(const RunContext& run, int index, const char* role) const {
    const Tensor factor = run.FloatInput(index, role, 1, 1);
    Expect(factor.shape.dims[0] == plan_.n, factor, "as [", plan_.n, "]");
    return factor;
  }

  const NormPlan plan_;
  const Kernel kernel_;
};

}  // namespace

std::unique_ptr<Operation> MakeNorm(const NormPlan& plan, Kernel kernel) {
  return std::make_unique<Norm>(plan, std::move(kernel));
}

}  // namespace pitc
