// gather_gemm: C[i] = act(A[rows[i]] @ B + bias) + residual[i], rows taken from and written to
// unpacked tensors as the plan says.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "index.h"
#include "operation.h"
#include "split.h"

namespace pitc {
namespace {

class GatherGemm final : public Operation {
 public:
  GatherGemm(const GatherGemmPlan& plan, Kernel kernel) : plan_(plan), kernel_(std::move(kernel)) {}
  int InputCount() const override { return 2 + plan_.bias + plan_.residual + 2 * NeedsRows(); }
  int OutputCount() const override { return 1; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    int next = 0;
    const Tensor a = run.FloatInput(next++, "a", plan_.gather ? 2 : 1);
    const int lead = a.shape.rank - 1;
    Expect(a.shape.dims[lead] == plan_.k, a, "of last dimension ", plan_.k);
    const int64_t m = Product({a.shape.Elements(0, lead), 1}, "a");
    Product({m, plan_.k}, "a");

    const Tensor b = run.FloatInput(next++, "b", 3, 3);
    const int64_t panels = b.shape.dims[0], width = b.shape.dims[2];
    Expect(width > 0 && b.shape.dims[1] == plan_.k && panels == (plan_.n + width - 1) / width, b,
           "as [ceil(", plan_.n, " / NR), ", plan_.k, ", NR]");
    Product({panels, plan_.k, width}, "b");

    const float* bias = nullptr;
    if (plan_.bias) {
      const Tensor t = run.FloatInput(next++, "bias", 1, 1);
      Expect(t.shape.dims[0] == plan_.n, t, "as float32 [", plan_.n, "]");
      bias = t.Floats();
    }
    Tensor residual;
    if (plan_.residual) residual = run.FloatInput(next++, "residual", 2);
    const int32_t* rows = nullptr;
    Shape domain;  // that rows are numbered in
    int64_t t = m;
    if (NeedsRows()) {
      const Tensor list = run.Int32Input(next++, "rows", {-1});
      rows = list.Int32s();
      t = list.shape.dims[0];
      domain = run.MaskInput(next++, "live").shape;
      if (plan_.gather) {
        CheckDomain(a, domain);
        CheckBelow(rows, t, m, "rows");
      } else {
        Expect(t == m, list, "as int32 [", m, "], one per row of a");
      }
    }
    if (plan_.residual) {
      const int last = residual.shape.rank - 1;
      Expect(residual.shape.dims[last] == plan_.n && residual.shape.Elements(0, last) == t,
             residual, "of ", t, " rows of ", plan_.n);
    }
    Product({t, plan_.n}, "the product");

    Shape shape;
    int64_t out_rows = t;
    if (plan_.scatter) {
      out_rows = Product({domain.Elements(), 1}, "live");
      Product({out_rows, plan_.n}, "the output");
      CheckAscending(rows, t, out_rows, "rows");
      shape.Append(domain, 0, domain.rank);
    } else if (plan_.gather) {
      shape.Add(t);
    } else {
      shape.Append(a.shape, 0, lead);
    }
    shape.Add(plan_.n);
    auto* c = static_cast<float*>(run.Output(0, shape, sizeof(float), scratch));
    if (plan_.scatter)
      ZeroOtherRows(run, c, plan_.n * static_cast<int64_t>(sizeof(float)), out_rows, rows, t);
    if (t == 0) return;

    const int32_t* every = nullptr;  // 0, 1, .., t - 1
    if (!plan_.gather || !plan_.scatter) {
      auto* numbers = scratch.Array<int32_t>(t);
      std::iota(numbers, numbers + t, 0);
      every = numbers;
    }
    const float* padded = PadBias(bias, panels * width, scratch);
    const GemmSplit split = SplitGemm(t, plan_.k, panels, width);
    run.Each(split.Count(), split.parallel, [&](int64_t task) {
      const GemmSplit::Part part = split.At(task);
      KernelCall call;
      call.Floats(a.data, {m, plan_.k}).Int32s(plan_.gather ? rows : every, {t});
      call.Floats(b.data, {panels, plan_.k, width}).Floats(padded, {panels * width});
      if (plan_.residual) call.Floats(residual.data, {t, plan_.n});
      call.Int32s(plan_.scatter ? rows : every, {t}).Floats(c, {out_rows, plan_.n});
      call.Int(part.row_begin).Int(part.row_end).Int(part.panel_begin).Int(part.panel_end);
      call.Run(kernel_);
    });
  }

 private:
  bool NeedsRows() const { return plan_.gather || plan_.scatter; }

  // Rows are numbered in the domain: in an `a` of other extents they would be other points.
  void CheckDomain(const Tensor& a, const Shape& domain) const {
    const int lead = a.shape.rank - 1;
    if (lead == domain.rank && std::equal(domain.dims, domain.dims + lead, a.shape.dims)) return;
    Shape expected = domain;
    expected.Add(plan_.k);
    Expect(false, a, "as ", Describe(a.type, expected), " (one row per point of the mask)");
  }

  // The bias as kernels read it: zeros where B's columns are padding, or everywhere when there is
  // none.
  const float* PadBias(const float* bias, int64_t columns, Arena::Scope& scratch) const {
    if (bias && columns == plan_.n) return bias;
    auto* padded = scratch.Array<float>(columns);
    const int64_t given = bias ? plan_.n : 0;
    std::copy_n(bias, given, padded);
    std::fill(padded + given, padded + columns, 0.0f);
    return padded;
  }

  const GatherGemmPlan plan_;
  const Kernel kernel_;
};

}  // namespace

std::unique_ptr<Operation> MakeGatherGemm(const GatherGemmPlan& plan, Kernel kernel) {
  return std::make_unique<GatherGemm>(plan, std::move(kernel));
}

}  // namespace pitc
