// attention: softmax(scale * Q K^T + bias) V over packed rows, each sequence against its own keys
// only.
#include <algorithm>
#include <cmath>

#include "base/index.h"
#include "base/split.h"
#include "ops/operation.h"

namespace pitc {
namespace {

constexpr double kSerialFlops = 2e6;  // about 20 us on one thread
constexpr double kTaskFlops = 1e6;    // tasks smaller than this go together

// A packed tensor seen as [rows, heads, size].
struct Heads {
  const float* data;
  int64_t rows, heads, size;
};

Heads ReadHeads(const RunContext& run, int index, const char* role, int64_t size, int64_t first,
                int64_t count) {
  const Tensor t = run.FloatInput(index, role, 2);
  const int64_t rows = t.shape.dims[0], row_size = t.shape.Elements(1, t.shape.rank);
  Expect(row_size % size == 0 && first + count <= row_size / size, t, "as [t, X, ", size,
         "] with X >= ", first + count);
  Product({rows, row_size}, role);
  return {t.Floats(), rows, row_size / size, size};
}

// The bias [B or 1, H or 1, Sq or 1, Sk or 1]; the stride of an extent of 1 is 0.
struct Bias {
  const float* data = nullptr;
  int64_t elements = 0, sequence = 0, head = 0, query = 0, key = 0;
  const int32_t* query_positions = nullptr;
  const int32_t* key_positions = nullptr;
};

class Attention final : public Operation {
 public:
  Attention(const AttentionPlan& plan, Kernel kernel) : plan_(plan), kernel_(std::move(kernel)) {}
  int InputCount() const override { return plan_.bias ? 8 : 5; }
  int OutputCount() const override { return 1; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const Heads q = ReadHeads(run, 0, "q", plan_.d, plan_.q_head, plan_.heads);
    const Heads k = ReadHeads(run, 1, "k", plan_.d, plan_.k_head, plan_.heads);
    const Heads v = ReadHeads(run, 2, "v", plan_.dv, plan_.v_head, plan_.heads);
    if (v.rows != k.rows) Fail("expected v of ", k.rows, " rows, as k, got ", v.rows);
    const Tensor q_list = run.Int32Input(3, "q_offsets", {-1});
    const int64_t sequences = q_list.shape.dims[0] - 1;
    Expect(sequences >= 0, q_list, "of one element or more");
    const int32_t* q_offsets = CopyOf(q_list.Int32s(), sequences + 1, scratch);
    const Tensor k_list = run.Int32Input(4, "k_offsets", {sequences + 1});
    const int32_t* k_offsets = CopyOf(k_list.Int32s(), sequences + 1, scratch);
    CheckOffsets(q_offsets, sequences, q.rows, "q_offsets");
    CheckOffsets(k_offsets, sequences, k.rows, "k_offsets");
    const Bias bias = plan_.bias ? ReadBias(run, sequences, q.rows, k.rows, scratch) : Bias{};
    Product({q.rows, plan_.heads, plan_.dv}, "the output");
    auto* out =
        static_cast<float*>(run.Output(0, {q.rows, plan_.heads, plan_.dv}, sizeof(float), scratch));
    if (q.rows == 0) return;

    const AttentionSplit split(q_offsets, sequences, plan_.heads,
                               scratch.Array<int64_t>(sequences + 1));
    const double flops = Flops(q_offsets, k_offsets, sequences);
    const auto count = static_cast<double>(split.Count());
    const Blocks groups =
        EvenBlocks(split.Count(), static_cast<int64_t>(std::ceil(kTaskFlops * count / flops)), 1);
    run.Each(groups.Count(), flops > kSerialFlops, [&](int64_t group) {
      for (int64_t task = groups.Begin(group); task < groups.End(group); ++task) {
        const AttentionSplit::Part part = split.At(task);
        const int32_t first_key = k_offsets[part.sequence], last_key = k_offsets[part.sequence + 1];
        const bool to_zero = plan_.nan_to_zero || (plan_.no_keys_to_zero && first_key == last_key);
        KernelCall call;
        call.Floats(q.data, {q.rows, q.heads, q.size}).Floats(k.data, {k.rows, k.heads, k.size});
        call.Floats(v.data, {v.rows, v.heads, v.size});
        if (plan_.bias) {
          call.Floats(bias.data, {bias.elements}).Int32s(bias.query_positions, {q.rows});
          call.Int32s(bias.key_positions, {k.rows});
        }
        call.Floats(out, {q.rows, plan_.heads, plan_.dv}).Float(plan_.scale).Int(to_zero);
        call.Int(plan_.q_head + part.head)
            .Int(plan_.k_head + part.head)
            .Int(plan_.v_head + part.head)
            .Int(part.head);
        call.Int(part.query_begin).Int(part.query_end);
        call.Int(first_key).Int(last_key);
        if (plan_.bias) {
          call.Int(part.sequence * bias.sequence + part.head * bias.head)
              .Int(bias.query)
              .Int(bias.key);
        }
        call.Run(kernel_);
      }
    });
  }

 private:
  Bias ReadBias(const RunContext& run, int64_t sequences, int64_t queries, int64_t keys,
                Arena::Scope& scratch) const {
    const Tensor t = run.FloatInput(5, "bias", 4, 4);
    const int64_t* dims = t.shape.dims;
    Expect((dims[0] == 1 || dims[0] == sequences) && (dims[1] == 1 || dims[1] == plan_.heads), t,
           "as [", sequences, " or 1, ", plan_.heads, " or 1, queries or 1, keys or 1]");
    Bias bias;
    bias.data = t.Floats();
    bias.elements =
        Numbered(t.shape.Elements(), "elements of bias");  // kernels take strides in int32
    bias.key = dims[3] == 1 ? 0 : 1;
    bias.query = dims[2] == 1 ? 0 : dims[3];
    bias.head = dims[1] == 1 ? 0 : dims[2] * dims[3];
    bias.sequence = dims[0] == 1 ? 0 : dims[1] * dims[2] * dims[3];
    bias.query_positions = ReadPositions(run, 6, "q_coords", queries, dims[2], scratch);
    bias.key_positions = ReadPositions(run, 7, "k_coords", keys, dims[3], scratch);
    return bias;
  }

  // The last coordinate; an extent of 1 takes any.
  static const int32_t* ReadPositions(const RunContext& run, int index, const char* role, int64_t t,
                                      int64_t extent, Arena::Scope& scratch) {
    const Tensor coords = run.Int32Input(index, role, {-1, t});
    Expect(coords.shape.dims[0] >= 1, coords, "of one coordinate or more");
    const int32_t* last = coords.Int32s() + (coords.shape.dims[0] - 1) * t;
    const int32_t* positions = CopyOf(last, t, scratch);
    if (extent != 1) CheckBelow(positions, t, extent, role);
    return positions;
  }

  double Flops(const int32_t* q_offsets, const int32_t* k_offsets, int64_t sequences) const {
    double pairs = 0;
    for (int64_t s = 0; s < sequences; ++s) {
      const double queries = q_offsets[s + 1] - q_offsets[s],
                   keys = k_offsets[s + 1] - k_offsets[s];
      pairs += queries * (keys + 1);  // a query without keys still writes its row
    }
    return pairs * static_cast<double>(2 * plan_.heads * (plan_.d + plan_.dv));
  }

  const AttentionPlan plan_;
  const Kernel kernel_;
};

}  // namespace

std::unique_ptr<Operation> MakeAttention(const AttentionPlan& plan, Kernel kernel) {
  return std::make_unique<Attention>(plan, std::move(kernel));
}

}  // namespace pitc
