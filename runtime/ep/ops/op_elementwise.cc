// elementwise: what elementwise operators compute together, in one pass.
//
// Rows are the places of all axes but the last. Where nothing depends on them, all elements are one
// long row, which is cut anywhere.
#include <algorithm>
#include <optional>

#include "base/split.h"
#include "ops/operation.h"

namespace pitc {
namespace {

constexpr size_t kMostOperands = 8, kMostResults = 4;
constexpr int64_t kTaskElements = int64_t{1} << 15;
constexpr int64_t kSerialElements = int64_t{1} << 16;  // about 20 us on one thread

class Elementwise final : public Operation {
 public:
  Elementwise(const ElementwisePlan& plan, Kernel kernel)
      : plan_(plan), kernel_(std::move(kernel)) {
    if (plan_.kinds.size() > kMostOperands || plan_.columns.size() > kMostResults)
      Fail("plan: ", plan_.kinds.size(), " operands and ", plan_.columns.size(),
           " results are too many");
  }
  int InputCount() const override { return static_cast<int>(plan_.kinds.size()); }
  int OutputCount() const override { return static_cast<int>(plan_.columns.size()); }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    Tensor operands[kMostOperands];
    const Shape shape = Read(run, operands);
    const int last = shape.rank - 1;
    const int64_t total = shape.Elements(0, shape.rank);
    const int64_t n = plan_.by_rows ? shape.dims[last] : total;
    const int64_t rows = plan_.by_rows ? shape.Elements(0, last) : 1;
    Shape column = shape;
    column.dims[last] = 1;
    void* results[kMostResults];
    for (size_t i = 0; i < plan_.columns.size(); ++i) {
      const Shape& made = IsColumn(i) ? column : shape;
      results[i] = run.Output(static_cast<int>(i), made, sizeof(float), scratch);
    }
    const Blocks tasks =
        plan_.by_rows
            ? EvenBlocks(rows, std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, n)), 1)
            : EvenBlocks(n, kTaskElements, 16);
    run.Each(tasks.Count(), total > kSerialElements, [&](int64_t task) {
      KernelCall call;
      for (size_t i = 0; i < plan_.kinds.size(); ++i) {
        const void* const data = operands[i].data;
        switch (plan_.kinds[i]) {
          case ElementwisePlan::kRow:
            call.Floats(data, {n});
            break;
          case ElementwisePlan::kColumn:
            call.Floats(data, {rows});
            break;
          case ElementwisePlan::kNumber:
            call.Floats(data, {1});
            break;
          case ElementwisePlan::kFlags:
            call.Words(data, 1, {rows, n});
            break;
          default:
            call.Floats(data, {rows, n});
        }
      }
      const Range part{tasks.Begin(task), tasks.End(task)}, all_rows{0, rows}, row{0, n};
      const Range r = plan_.by_rows ? part : all_rows, j = plan_.by_rows ? row : part;
      for (size_t i = 0; i < plan_.columns.size(); ++i) {
        if (IsColumn(i)) {
          call.Floats(results[i], {rows});
        } else {
          call.Floats(results[i], {rows, n});
        }
      }
      call.Int(r.begin).Int(r.end).Int(j.begin).Int(j.end).Run(kernel_);
    });
  }

 private:
  bool IsColumn(size_t result) const { return plan_.columns[result] != 0; }

  // The shape of the result, that of whole operands; all of them are as the plan says.
  Shape Read(const RunContext& run, Tensor* operands) const {
    std::optional<Shape> found;
    for (size_t i = 0; i < plan_.kinds.size(); ++i) {
      const bool flags = plan_.kinds[i] == ElementwisePlan::kFlags;
      const int place = static_cast<int>(i);
      Tensor& x = operands[i] =
          flags ? run.MaskInput(place, "flags") : run.FloatInput(place, "an operand", 0);
      const bool whole = flags || plan_.kinds[i] == ElementwisePlan::kWhole;
      if (flags) Expect(x.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, x, "of bool");
      if (!whole) continue;
      if (!found) found = x.shape;
      Expect(x.shape == *found, x, "of the shape of the other operands");
    }
    if (!found || found->rank == 0) Fail("elementwise: no operand of the shape of the result");
    const int last = found->rank - 1;
    for (size_t i = 0; i < plan_.kinds.size(); ++i) {
      const Tensor& x = operands[i];
      const int64_t count = x.shape.Elements(0, x.shape.rank);
      switch (plan_.kinds[i]) {
        case ElementwisePlan::kRow:
          Expect(count == found->dims[last], x, "of ", found->dims[last], " elements");
          break;
        case ElementwisePlan::kColumn:
          Expect(count == found->Elements(0, last), x, "of one element for each row");
          break;
        case ElementwisePlan::kNumber:
          Expect(count == 1, x, "of one element");
          break;
        default:
          break;
      }
    }
    return *found;
  }

  const ElementwisePlan plan_;
  const Kernel kernel_;
};

}  // namespace

std::unique_ptr<Operation> MakeElementwise(const ElementwisePlan& plan, Kernel kernel) {
  return std::make_unique<Elementwise>(plan, std::move(kernel));
}

}  // namespace pitc
