// add_rows: updates that are added to rows, of zeros or of a start, each to the one that its index
// names, perhaps times a number of its own.
//
// A row may be named several times. Each column is summed by one thread, in the order of the
// updates, so results have the same bits on any number of threads.
#include <algorithm>

#include "base/index.h"
#include "base/split.h"
#include "ops/operation.h"

namespace pitc {
namespace {

constexpr int64_t kStripe = 64;  // columns of a task, at least: whole cache lines
constexpr int64_t kClearedBytes = int64_t{1} << 20;
constexpr double kSerialAdds = 1e5;  // about 20 us

class AddRows final : public Operation {
 public:
  explicit AddRows(const AddRowsPlan& plan) : plan_(plan) {}
  int InputCount() const override { return plan_.Places().count; }
  int OutputCount() const override { return AddRowsPlan::kOutputs; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const AddRowsPlan::Inputs in = plan_.Places();
    const Tensor updates = run.FloatInput(in.updates, "updates", 2, 2);
    const int64_t count = updates.shape.dims[0], width = updates.shape.dims[1];
    const Tensor start = plan_.started ? run.FloatInput(in.start, "start", 2, 2) : Tensor{};
    if (plan_.started) Expect(start.shape.dims[1] == width, start, "as float32 [n, ", width, "]");
    const float* const factors =
        plan_.scaled ? Factors(run.FloatInput(in.factors, "factors", 1, 4), count) : nullptr;
    const int64_t n = plan_.started ? start.shape.dims[0]
                      : plan_.sized ? Size(run.Input(in.size, "size"))
                                    : *plan_.n;
    const int64_t* const indices = Checked(run.Input(in.indices, "indices"), count, n, scratch);
    const int64_t all = Product({n, width}, "the output");
    auto* const out = static_cast<float*>(run.Output(0, {n, width}, sizeof(float), scratch));
    if (all == 0) return;
    const Blocks cleared = EvenBlocks(all, kClearedBytes / int64_t{sizeof(float)}, kStripe);
    run.Each(cleared.Count(), cleared.Count() > 1, [&](int64_t block) {
      const int64_t begin = cleared.Begin(block), end = cleared.End(block);
      if (plan_.started) {
        std::copy(start.Floats() + begin, start.Floats() + end, out + begin);
      } else {
        std::fill(out + begin, out + end, 0.0f);
      }
    });
    const double adds = static_cast<double>(count) * static_cast<double>(width);
    const int64_t threads = adds < kSerialAdds ? 1 : run.Threads();
    const Blocks columns = EvenBlocks(width, (width + threads - 1) / threads, kStripe);
    run.Each(columns.Count(), columns.Count() > 1, [&](int64_t block) {
      const int64_t begin = columns.Begin(block), end = columns.End(block);
      for (int64_t i = 0; i < count; ++i) {
        const float* const from = updates.Floats() + i * width;
        float* const to = out + indices[i] * width;
        if (factors == nullptr) {
          for (int64_t c = begin; c < end; ++c) to[c] += from[c];
        } else {
          for (int64_t c = begin; c < end; ++c) to[c] += factors[i] * from[c];
        }
      }
    });
  }

 private:
  static const float* Factors(const Tensor& factors, int64_t count) {
    Expect(factors.shape.Elements() == count, factors, "as one number for each of ", count,
           " rows");
    return factors.Floats();
  }

  static int64_t Size(const Tensor& size) {
    const bool is_one =
        size.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 && size.shape.Elements() == 1;
    Expect(is_one, size, "as int64 [1]");
    const int64_t n = *static_cast<const int64_t*>(size.data);
    if (n < 0 || n > kMostElements) Fail("expected a size from 0 to ", kMostElements, ", got ", n);
    return n;
  }

  // Indices from 0 on: those from the end are below 0.
  static const int64_t* Checked(const Tensor& indices, int64_t count, int64_t n,
                                Arena::Scope& scratch) {
    const int rank = indices.shape.rank;
    const bool is_list = rank >= 1 && indices.shape.dims[0] == count &&
                         indices.shape.Elements(1, rank) == 1 &&
                         indices.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
    Expect(is_list, indices, "as int64 [", count, "]");
    auto* const found = scratch.Array<int64_t>(count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = static_cast<const int64_t*>(indices.data)[i];
      found[i] = index < 0 ? index + n : index;
      if (found[i] < 0 || found[i] >= n)
        Fail("expected indices from ", -n, " to ", n - 1, ", got ", index, " at ", i);
    }
    return found;
  }

  const AddRowsPlan plan_;
};

}  // namespace

std::unique_ptr<Operation> MakeAddRows(const AddRowsPlan& plan) {
  return std::make_unique<AddRows>(plan);
}

}  // namespace pitc
