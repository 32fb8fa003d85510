// grouped: each row is multiplied by the matrix of its group.
//
// A counting sort lists the rows of each group, in their order, so that one pass over a matrix
// serves all of them. A matrix without a row is never read. Zeros of rows may be skipped: then each
// group is a contraction by itself.
#include <algorithm>

#include "base/index.h"
#include "base/split.h"
#include "ops/gemm_operands.h"
#include "ops/grouped.h"
#include "ops/operation.h"

namespace pitc {
namespace {

// The rows of A and of C, group by group: those of group g from first[g] to first[g + 1].
struct SortedRows {
  const int64_t* first;
  const int32_t *from, *to;
  int64_t hit;  // groups that have rows

  int64_t Count(int64_t g) const { return first[g + 1] - first[g]; }
};

class Grouped final : public Operation {
 public:
  Grouped(const GroupedPlan& plan, Kernel kernel, Contraction contraction, std::string node,
          std::shared_ptr<Trace> trace)
      : plan_(plan),
        kernel_(std::move(kernel)),
        contraction_(std::move(contraction)),
        node_(std::move(node)),
        trace_(std::move(trace)) {}
  int InputCount() const override { return plan_.Places().count; }
  int OutputCount() const override { return GroupedPlan::kOutputs; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const GroupedPlan::Inputs in = plan_.Places();
    const Tensor a = run.Input(in.a, "a"), group = run.Input(in.group, "group");
    const GroupedRows of = CheckGrouped(plan_, a, group);
    const int64_t stored = of.stored, count = of.count, n = plan_.n;
    const Panels b = ReadMatrices(run, in.b, scratch);
    auto* const c =
        static_cast<float*>(run.Output(0, {of.t, of.j, of.m, n}, sizeof(float), scratch));
    const SortedRows rows = Sort(group, of.Points(), of.m, of.sharing, scratch);
    if (trace_) trace_->Write(node_, Counted(rows, b));
    if (count == 0) return;

    LeftRows left{a.Floats(), stored, plan_.k, rows.from, count};
    if (contraction_.LooksForZeros()) {
      if (b.rounded) {
        left.rows = Identity(stored, scratch);
        left.count = stored;
        left = contraction_.AsWords(run, left, scratch);
      }
      left.rows = rows.from;
      left.count = count;
      if (contraction_.MaySkip(run, left, b, rows.hit)) {
        return RunEach(run, left, b, rows, {c, count, n, rows.to, nullptr, Element::kFloat32});
      }
    }
    RunDense(run, left, b, rows, c);
  }

 private:
  GroupRows Counted(const SortedRows& rows, const Panels& b) const {
    const int64_t bytes = b.count * b.k * b.width * static_cast<int64_t>(sizeof(float));
    GroupRows found{plan_.groups, rows.hit, rows.first[plan_.groups], 0, bytes};
    for (int64_t g = 0; g < plan_.groups; ++g)
      found.most_rows = std::max(found.most_rows, rows.Count(g));
    return found;
  }

  // Group by group, zeros left out.
  void RunEach(const RunContext& run, const LeftRows& all, const Panels& first,
               const SortedRows& rows, const Target& target) const {
    for (int64_t g = 0; g < plan_.groups; ++g) {
      LeftRows left = all;
      left.rows += rows.first[g];
      left.count = rows.Count(g);
      if (left.count > 0)
        contraction_.RunLeft(run, left, nullptr, Of(g, first), target.Part(rows.first[g]));
    }
  }

  // Tasks are of all groups.
  void RunDense(const RunContext& run, const LeftRows& left, const Panels& b,
                const SortedRows& rows, float* c) const {
    const int64_t count = left.count, n = plan_.n;
    const int threads = run.ThreadsFor(GemmFlops(count, plan_.k, n));
    const auto split = [&](int64_t g) { return b.Split(rows.Count(g), kernel_, threads); };
    Arena::Scope scratch;
    auto* const tasks = scratch.Array<int64_t>(plan_.groups + 1);  // before each group
    tasks[0] = 0;
    for (int64_t g = 0; g < plan_.groups; ++g) tasks[g + 1] = tasks[g] + split(g).Count();
    run.Each(tasks[plan_.groups], threads > 1, [&](int64_t task) {
      const int64_t g = std::upper_bound(tasks, tasks + plan_.groups + 1, task) - tasks - 1;
      const GemmSplit::Part part = split(g).At(task - tasks[g]);
      KernelCall call;
      call.Floats(left.data, {left.stored, left.k}).Int32s(rows.from, {count});
      call.Floats(Of(g, b).data, {b.count, b.k, b.width}).Floats(b.bias, {b.count * b.width});
      call.Int32s(rows.to, {count}).Floats(c, {count, n});
      call.Int(rows.first[g] + part.row_begin).Int(rows.first[g] + part.row_end);
      call.Int(part.panel_begin).Int(part.panel_end).Run(kernel_);
    });
  }

  static Panels Of(int64_t g, Panels first) {
    first.data += g * first.count * first.k * first.width;
    return first;
  }

  // Those of the first matrix.
  Panels ReadMatrices(const RunContext& run, int place, Arena::Scope& scratch) const {
    const Tensor b = run.Input(place, "b");
    const bool rounded = plan_.rounded.has_value();
    const int64_t panels = PanelCount(plan_.n), count = plan_.groups * panels;
    const int64_t rows = StepCount(plan_.k, rounded ? 2 : 1), width = kPanelWidth * (1 + rounded);
    ExpectNumbers(b, rounded ? Element::kBfloat16 : Element::kFloat32, 3, 3);
    Expect(b.shape.dims[0] == count && b.shape.dims[1] == rows && b.shape.dims[2] == width, b,
           rounded ? "as bfloat16 [" : "as float32 [", count, ", ", rows, ", ", width, "]");
    const ProductPlan product{plan_.k, plan_.n, false};
    const float* const bias = ReadBias(run, -1, product, panels * kPanelWidth, scratch);
    return {b.Floats(), panels, rows, kPanelWidth, bias, rounded};
  }

  // Point i has rows i * m .. of C, and rows i / sharing * m .. of A.
  SortedRows Sort(const Tensor& group, int64_t points, int64_t m, int64_t sharing,
                  Arena::Scope& scratch) const {
    auto* const of = scratch.Array<int32_t>(points);
    auto* const first = scratch.Array<int64_t>(plan_.groups + 1);
    std::fill_n(first, plan_.groups + 1, 0);
    for (int64_t i = 0; i < points; ++i) {
      const int64_t g = GroupOf(plan_, static_cast<const int64_t*>(group.data)[i], i);
      of[i] = static_cast<int32_t>(g);
      first[g + 1] += m;
    }
    const int64_t hit = plan_.groups - std::count(first + 1, first + plan_.groups + 1, 0);
    for (int64_t g = 0; g < plan_.groups; ++g) first[g + 1] += first[g];
    auto* const next = scratch.Array<int64_t>(plan_.groups);
    std::copy_n(first, plan_.groups, next);
    auto* const from = scratch.Array<int32_t>(points * m);
    auto* const to = scratch.Array<int32_t>(points * m);
    for (int64_t i = 0; i < points; ++i) {
      int64_t& place = next[of[i]];
      for (int64_t r = 0; r < m; ++r, ++place) {
        from[place] = static_cast<int32_t>(i / sharing * m + r);
        to[place] = static_cast<int32_t>(i * m + r);
      }
    }
    return {first, from, to, hit};
  }

  const GroupedPlan plan_;
  const Kernel kernel_;
  const Contraction contraction_;
  const std::string node_;
  const std::shared_ptr<Trace> trace_;
};

}  // namespace

std::unique_ptr<Operation> MakeGrouped(const GroupedPlan& plan, Kernel kernel,
                                       Contraction contraction, const std::string& node,
                                       std::shared_ptr<Trace> trace) {
  return std::make_unique<Grouped>(plan, std::move(kernel), std::move(contraction), node,
                                   std::move(trace));
}

}  // namespace pitc
