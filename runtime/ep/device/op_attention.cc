// attention on a device: one launch for all sequences and heads.
#include "device/device_operation.h"
#include "ops/attention.h"

namespace pitc::cuda {
namespace {

class Attention final : public DeviceOperation {
 public:
  Attention(const AttentionPlan& plan, DeviceKernel kernel)
      : plan_(plan), kernel_(std::move(kernel)) {}
  int InputCount() const override { return plan_.Places().count; }
  int OutputCount() const override { return AttentionPlan::kOutputs; }

  void Run(const DeviceRun& run) const override {
    Arena::Scope scratch;
    const auto in = ReadAttention(run, plan_, scratch);
    const HeadExtents &q = in.q_heads, &k = in.k_heads, &v = in.v_heads;
    const BiasExtents& bias = in.bias_extents;
    void* const out = run.Output(0, {q.rows, plan_.heads, plan_.dv}, RecordOf(plan_.dtype).bytes);
    ExpectAligned(out, "the output");
    if (q.rows == 0) return;
    const int64_t ends = in.sequences + 1;
    KernelCall call = run.Call();
    call.Numbers(run.OnDevice(in.q), plan_.dtype, {q.rows, q.heads, q.size});
    call.Numbers(run.OnDevice(in.k), plan_.dtype, {k.rows, k.heads, k.size});
    call.Numbers(run.OnDevice(in.v), plan_.dtype, {v.rows, v.heads, v.size});
    call.Int32s(run.OnDevice(in.q_offsets, ends), {ends});
    call.Int32s(run.OnDevice(in.k_offsets, ends), {ends});
    if (plan_.bias) {
      call.Floats(run.OnDevice(in.bias), {bias.elements});
      call.Int32s(run.OnDevice(in.query_positions, q.rows), {q.rows});
      call.Int32s(run.OnDevice(in.key_positions, k.rows), {k.rows});
    }
    call.Numbers(out, plan_.dtype, {q.rows, plan_.heads, plan_.dv}).Float(plan_.scale);
    call.Int(plan_.nan_to_zero).Int(plan_.no_keys_to_zero);
    call.Int(plan_.q_head).Int(plan_.k_head).Int(plan_.v_head);
    if (plan_.bias) call.Int(bias.sequence).Int(bias.head).Int(bias.query).Int(bias.key);
    run.AddTurns(&call, (q.rows / kCudaSumRows + in.sequences) * plan_.heads);
    run.Launch(kernel_, call);
  }

 private:
  const AttentionPlan plan_;
  const DeviceKernel kernel_;
};

}  // namespace

std::unique_ptr<DeviceOperation> MakeAttention(const AttentionPlan& plan, DeviceKernel kernel) {
  return std::make_unique<Attention>(plan, std::move(kernel));
}

}  // namespace pitc::cuda
