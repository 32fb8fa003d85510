// attention: softmax(scale * Q K^T + bias) V over packed rows, each sequence against its own keys
// only.
#include <algorithm>
#include <cmath>

#include "base/split.h"
#include "ops/attention.h"
#include "ops/operation.h"

namespace pitc {
namespace {

constexpr double kSerialFlops = 2e6;  // about 20 us on one thread
constexpr double kTaskFlops = 1e6;    // tasks smaller than this go together

class Attention final : public Operation {
 public:
  Attention(const AttentionPlan& plan, Kernel kernel) : plan_(plan), kernel_(std::move(kernel)) {}
  int InputCount() const override { return plan_.bias ? 8 : 5; }
  int OutputCount() const override { return 1; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const auto in = ReadAttention(run, plan_, scratch);
    const HeadExtents &q = in.q_heads, &k = in.k_heads, &v = in.v_heads;
    const BiasExtents& bias = in.bias_extents;
    auto* out =
        static_cast<float*>(run.Output(0, {q.rows, plan_.heads, plan_.dv}, sizeof(float), scratch));
    if (q.rows == 0) return;

    const AttentionSplit split(in.q_offsets, in.sequences, plan_.heads,
                               scratch.Array<int64_t>(in.sequences + 1));
    const double flops = Flops(in.q_offsets, in.k_offsets, in.sequences);
    const auto count = static_cast<double>(split.Count());
    const Blocks groups =
        EvenBlocks(split.Count(), static_cast<int64_t>(std::ceil(kTaskFlops * count / flops)), 1);
    run.Each(groups.Count(), flops > kSerialFlops, [&](int64_t group) {
      for (int64_t task = groups.Begin(group); task < groups.End(group); ++task) {
        const AttentionSplit::Part part = split.At(task);
        const int32_t first_key = in.k_offsets[part.sequence],
                      last_key = in.k_offsets[part.sequence + 1];
        const bool to_zero = plan_.nan_to_zero || (plan_.no_keys_to_zero && first_key == last_key);
        KernelCall call;
        call.Floats(in.q.data, {q.rows, q.heads, q.size});
        call.Floats(in.k.data, {k.rows, k.heads, k.size});
        call.Floats(in.v.data, {v.rows, v.heads, v.size});
        if (plan_.bias) {
          call.Floats(in.bias.data, {bias.elements}).Int32s(in.query_positions, {q.rows});
          call.Int32s(in.key_positions, {k.rows});
        }
        call.Floats(out, {q.rows, plan_.heads, plan_.dv});
        AddScale(&call);
        call.Int(to_zero);
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
  // Rounded scores come in steps, and leave them again.
  void AddScale(KernelCall* call) const {
    const auto &scores = plan_.score_steps, &weights = plan_.weight_steps;
    call->Float(scores ? plan_.scale / scores->step : plan_.scale);
    if (scores) {
      call->Float(-static_cast<double>(scores->below)).Float(static_cast<double>(scores->above));
      call->Float(scores->step * plan_.score_scale);
    }
    if (weights) call->Float(weights->step).Float(static_cast<double>(weights->above));
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
