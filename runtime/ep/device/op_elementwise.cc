// elementwise on a device: one launch, which knows all sizes from the shapes of its operands.
#include <algorithm>

#include "base/index.h"
#include "device/device_operation.h"
#include "ops/elementwise.h"

namespace pitc::cuda {
namespace {

constexpr int64_t kOfABlock = 1024;  // elements that its threads take at once

class Elementwise final : public DeviceOperation {
 public:
  Elementwise(const ElementwisePlan& plan, DeviceKernel kernel)
      : plan_(plan),
        kernel_(std::move(kernel)),
        has_columns_(std::count(plan.columns.begin(), plan.columns.end(), 1) > 0) {
    CheckCounts(plan_);
  }
  int InputCount() const override { return static_cast<int>(plan_.kinds.size()); }
  int OutputCount() const override { return static_cast<int>(plan_.columns.size()); }

  void Run(const DeviceRun& run) const override {
    DeviceInput operands[kMostOperands];
    const ElementwiseRows all = ReadElementwise(run, plan_, operands);
    void* results[kMostResults];
    for (size_t i = 0; i < plan_.columns.size(); ++i) {
      results[i] = run.Output(static_cast<int>(i), all.Of(plan_, i), sizeof(float));
      ExpectAligned(results[i], "a result");
    }
    if (all.rows == 0 || (all.n == 0 && !has_columns_)) return;
    if (plan_.by_rows) {
      Numbered(all.rows, "rows");
      Numbered(all.n, "elements of a row");
    }
    KernelCall call = run.Call();
    for (size_t i = 0; i < plan_.kinds.size(); ++i)
      all.AddOperand(&call, plan_, i, run.OnDevice(operands[i]));
    for (size_t i = 0; i < plan_.columns.size(); ++i) all.AddResult(&call, plan_, i, results[i]);
    call.Int(plan_.by_rows ? run.Blocks(all.rows, 1) : run.Blocks(all.n, kOfABlock));
    run.Launch(kernel_, call);
  }

 private:
  const ElementwisePlan plan_;
  const DeviceKernel kernel_;
  const bool has_columns_;
};

}  // namespace

std::unique_ptr<DeviceOperation> MakeElementwise(const ElementwisePlan& plan, DeviceKernel kernel) {
  return std::make_unique<Elementwise>(plan, std::move(kernel));
}

}  // namespace pitc::cuda
