// sparse_product: C = A @ B, of which A holds few elements that are not 0.
//
// These are listed, and each adds its multiple of a row of B to a row of C, in the order of k.
// Where B holds Inf or NaN, all elements count: 0 times Inf is NaN.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/index.h"
#include "base/split.h"
#include "ops/operation.h"

namespace pitc {
namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 18;  // of C, by a task

// For each row of C the places of its terms, from first[i] to first[i + 1].
struct Terms {
  const int64_t* first;
  const int32_t* k;
};

class SparseProduct final : public Operation {
 public:
  SparseProduct(const SparseProductPlan& plan, const Primitives& simd) : plan_(plan), simd_(simd) {}
  int InputCount() const override { return plan_.Places().count; }
  int OutputCount() const override { return SparseProductPlan::kOutputs; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const SparseProductPlan::Inputs in = plan_.Places();
    const Tensor a = run.FloatInput(in.a, "a", 2), b = run.FloatInput(in.b, "b", 2, 2);
    const int rank = a.shape.rank, sum = plan_.turned ? 0 : rank - 1;
    const int64_t k = a.shape.dims[sum], n = b.shape.dims[1];
    Expect(b.shape.dims[0] == k, b, "of ", k, " rows");
    const int begin = plan_.turned ? 1 : 0, end = plan_.turned ? rank : rank - 1;
    const int64_t m = Numbered(a.shape.Elements(begin, end), "rows of c");
    Numbered(k, "rows of b");
    Shape shape;
    shape.Append(a.shape, begin, end);
    shape.Add(n);
    Product({m, n}, "the output");
    auto* const c = static_cast<float*>(run.Output(0, shape, sizeof(float), scratch));
    if (m == 0 || n == 0) return;
    const bool all = !IsFinite(b.Floats(), k * n);
    const Terms terms = all ? Terms{} : List(a, m, k, scratch);
    const int64_t step = plan_.turned ? m : 1, row = plan_.turned ? 1 : k;
    const int64_t bytes = n * static_cast<int64_t>(sizeof(float));
    const Blocks blocks{m, std::max<int64_t>(kBlockBytes / bytes, 1)};
    run.Each(blocks.Count(), blocks.Count() > 1, [&](int64_t block) {
      for (int64_t i = blocks.Begin(block); i < blocks.End(block); ++i) {
        float* const to = c + i * n;
        std::fill_n(to, n, 0.0f);
        const int64_t first = all ? 0 : terms.first[i], last = all ? k : terms.first[i + 1];
        for (int64_t z = first; z < last; ++z) {
          const int64_t term = all ? z : terms.k[z];
          const float x = a.Floats()[i * row + term * step];
          const float* const from = b.Floats() + term * n;
          for (int64_t j = 0; j < n; ++j) to[j] += x * from[j];
        }
      }
    });
  }

 private:
  static bool IsFinite(const float* values, int64_t count) {
    bool odd = false;
    for (int64_t i = 0; i < count; ++i)
      odd |= !(std::abs(values[i]) <= std::numeric_limits<float>::max());
    return !odd;
  }

  // Rows of A are those of C, or of B where it is turned.
  Terms List(const Tensor& a, int64_t m, int64_t k, Arena::Scope& scratch) const {
    const int64_t rows = plan_.turned ? k : m, width = plan_.turned ? m : k;
    const int64_t words = BitWords(width);
    auto* const bits = scratch.Array<uint64_t>(rows * words);
    int64_t count = 0;
    for (int64_t r = 0; r < rows; ++r) {
      simd_.live_bits(Live::kNotZero, a.Floats() + r * width, width, bits + r * words);
      count += simd_.count_bits(bits + r * words, words);
    }
    Numbered(count, "elements of a that are not 0");
    auto* const first = scratch.Array<int64_t>(m + 1);
    auto* const found = scratch.Array<int32_t>(count);
    const auto places = [&](int64_t r, int32_t* to, int64_t room) {
      return simd_.few_positions(bits + r * words, words, 0, to, room);
    };
    first[0] = 0;
    if (!plan_.turned) {
      for (int64_t r = 0; r < m; ++r)
        first[r + 1] = first[r] + places(r, found + first[r], count - first[r]);
      return {first, found};
    }
    auto* const columns = scratch.Array<int32_t>(width);
    std::fill_n(first, m + 1, 0);
    const auto each = [&](const auto& take) {
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t hits = places(r, columns, width);
        for (int64_t z = 0; z < hits; ++z) take(columns[z], static_cast<int32_t>(r));
      }
    };
    each([&](int32_t i, int32_t) { ++first[i + 1]; });
    for (int64_t i = 0; i < m; ++i) first[i + 1] += first[i];
    auto* const next = scratch.Array<int64_t>(m);
    std::copy_n(first, m, next);
    each([&](int32_t i, int32_t r) { found[next[i]++] = r; });
    return {first, found};
  }

  const SparseProductPlan plan_;
  const Primitives& simd_;
};

}  // namespace

std::unique_ptr<Operation> MakeSparseProduct(const SparseProductPlan& plan,
                                             const Primitives& simd) {
  return std::make_unique<SparseProduct>(plan, simd);
}

}  // namespace pitc
