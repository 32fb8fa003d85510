// contract: C[i] = act(A[rows[i]] @ B + bias) + residual[i], where A, or max(A, 0), may hold zeros.
#include "ops/gemm_operands.h"
#include "ops/operation.h"

namespace pitc {
namespace {

class Contract final : public Operation {
 public:
  Contract(const ContractPlan& plan, Contraction contraction)
      : plan_(plan.gemm), input_relu_(plan.input_relu), contraction_(std::move(contraction)) {}
  int InputCount() const override { return ProductInputCount(plan_); }
  int OutputCount() const override { return 1; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    ProductOperands product = ReadProduct(run, plan_, scratch);
    product.left.relu = input_relu_;
    contraction_.Run(run, product.left, nullptr, product.b, product.target);
  }

 private:
  const GatherGemmPlan plan_;
  const bool input_relu_;
  const Contraction contraction_;
};

}  // namespace

std::unique_ptr<Operation> MakeContract(const ContractPlan& plan, Contraction contraction) {
  return std::make_unique<Contract>(plan, std::move(contraction));
}

}  // namespace pitc
