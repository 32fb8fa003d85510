// contract: C[i] = act(A[rows[i]] @ B + bias) + residual[i], where A, or max(A, 0), may hold zeros.
#include "gemm_operands.h"
#include "operation.h"

namespace pitc {
namespace {

class Contract final : public Operation {
 public:
  Contract(const ContractPlan& plan, Contraction contraction)
      : plan_(plan.gemm), input_relu_(plan.input_relu), contraction_(std::move(contraction)) {}
  int InputCount() const override { return 2 + plan_.bias + GemmOperands::RowInputCount(plan_); }
  int OutputCount() const override { return 1; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    int next = 0;
    GemmOperands operands(run, plan_, plan_, scratch);
    operands.ReadLeft(&next);
    const Panels b = ReadPanels(run, &next, "b", plan_, scratch);
    operands.ReadRows(&next);
    LeftRows left = operands.left();
    left.relu = input_relu_;
    contraction_.Run(run, left, nullptr, b, operands.target());
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
