// gather_gemm: C[i] = act(A[rows[i]] @ B + bias) + residual[i], rows taken from and written to
// unpacked tensors as the plan says.
#include "ops/gemm_operands.h"
#include "ops/operation.h"

namespace pitc {
namespace {

class GatherGemm final : public Operation {
 public:
  GatherGemm(const GatherGemmPlan& plan, Kernel kernel) : plan_(plan), kernel_(std::move(kernel)) {}
  int InputCount() const override { return ProductInputCount(plan_); }
  int OutputCount() const override { return 1; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const ProductOperands product = ReadProduct(run, plan_, scratch);
    RunGatherGemm(run, kernel_, product.left, product.b, product.target);
  }

 private:
  const GatherGemmPlan plan_;
  const Kernel kernel_;
};

}  // namespace

std::unique_ptr<Operation> MakeGatherGemm(const GatherGemmPlan& plan, Kernel kernel) {
  return std::make_unique<GatherGemm>(plan, std::move(kernel));
}

}  // namespace pitc
