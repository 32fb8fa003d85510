// contract_right: C = act(A @ S + bias) + residual, where S may hold many zeros.
#include "base/index.h"
#include "ops/gemm_operands.h"
#include "ops/operation.h"

namespace pitc {
namespace {

class ContractRight final : public Operation {
 public:
  ContractRight(const ContractRightPlan& plan, RightContraction contraction)
      : plan_(plan), contraction_(std::move(contraction)) {}
  int InputCount() const override { return ProductInputCount(Gemm()) + plan_.factor; }
  int OutputCount() const override { return 1; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    int next = 0;
    GemmOperands operands(run, Gemm(), Gemm(), scratch);
    operands.ReadLeft(&next);
    StoredMatrix right{ReadStored(run, &next, "s"), nullptr, Gemm().n, Gemm().k};
    if (plan_.factor) right.factor = ReadStored(run, &next, "factor");
    if (!plan_.by_rows) right.columns = Gemm().n;
    const float* bias = ReadBias(run, &next, Gemm(), PanelCount(Gemm().n) * kPanelWidth, scratch);
    operands.ReadRows(&next);
    contraction_.Run(run, operands.left(), right, bias, operands.target());
  }

 private:
  const GatherGemmPlan& Gemm() const { return plan_.contract.gemm; }

  const float* ReadStored(const RunContext& run, int* next, const char* role) const {
    const Tensor s = run.FloatInput((*next)++, role, 2, 2);
    const int64_t rows = plan_.by_rows ? Gemm().n : Gemm().k;
    const int64_t columns = plan_.by_rows ? Gemm().k : Gemm().n;
    Expect(s.shape.dims[0] == rows && s.shape.dims[1] == columns, s, "as float32 [", rows, ", ",
           columns, "]");
    Product({rows, columns}, role);
    return s.Floats();
  }

  const ContractRightPlan plan_;
  const RightContraction contraction_;
};

}  // namespace

std::unique_ptr<Operation> MakeContractRight(const ContractRightPlan& plan,
                                             RightContraction contraction) {
  return std::make_unique<ContractRight>(plan, std::move(contraction));
}

}  // namespace pitc
