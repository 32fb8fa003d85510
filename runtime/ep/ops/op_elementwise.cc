// elementwise: what elementwise operators compute together, in one pass. Rows are cut into tasks;
// a row of all elements is cut anywhere.
#include <algorithm>

#include "base/split.h"
#include "ops/elementwise.h"
#include "ops/operation.h"

namespace pitc {
namespace {

constexpr int64_t kTaskElements = int64_t{1} << 15;
constexpr int64_t kSerialElements = int64_t{1} << 16;  // about 20 us on one thread

class Elementwise final : public Operation {
 public:
  Elementwise(const ElementwisePlan& plan, Kernel kernel)
      : plan_(plan), kernel_(std::move(kernel)) {
    CheckCounts(plan_);
  }
  int InputCount() const override { return static_cast<int>(plan_.kinds.size()); }
  int OutputCount() const override { return static_cast<int>(plan_.columns.size()); }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    Tensor operands[kMostOperands];
    const ElementwiseRows all = ReadElementwise(run, plan_, operands);
    void* results[kMostResults];
    for (size_t i = 0; i < plan_.columns.size(); ++i)
      results[i] = run.Output(static_cast<int>(i), all.Of(plan_, i), sizeof(float), scratch);
    const Blocks tasks =
        plan_.by_rows
            ? EvenBlocks(all.rows,
                         std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, all.n)), 1)
            : EvenBlocks(all.n, kTaskElements, 16);
    run.Each(tasks.Count(), all.rows * all.n > kSerialElements, [&](int64_t task) {
      KernelCall call;
      for (size_t i = 0; i < plan_.kinds.size(); ++i)
        all.AddOperand(&call, plan_, i, operands[i].data);
      for (size_t i = 0; i < plan_.columns.size(); ++i) all.AddResult(&call, plan_, i, results[i]);
      const Range part{tasks.Begin(task), tasks.End(task)}, all_rows{0, all.rows}, row{0, all.n};
      const Range r = plan_.by_rows ? part : all_rows, j = plan_.by_rows ? row : part;
      call.Int(r.begin).Int(r.end).Int(j.begin).Int(j.end).Run(kernel_);
    });
  }

 private:
  const ElementwisePlan plan_;
  const Kernel kernel_;
};

}  // namespace

std::unique_ptr<Operation> MakeElementwise(const ElementwisePlan& plan, Kernel kernel) {
  return std::make_unique<Elementwise>(plan, std::move(kernel));
}

}  // namespace pitc
