// attention on a device: one launch for all sequences and heads.
#include "device/attention_inputs.h"
#include "device/device_operation.h"

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
    AttentionInputs in(run, plan_, scratch);
    const int64_t rows = in.all().q_heads.rows;
    void* const out = run.Output(0, {rows, plan_.heads, plan_.dv}, RecordOf(plan_.dtype).bytes);
    ExpectAligned(out, "the output");
    if (rows == 0) return;
    in.Bring();
    KernelCall call = run.Call();
    in.AddRows(&call);
    in.AddLists(&call);
    call.Numbers(out, plan_.dtype, {rows, plan_.heads, plan_.dv}).Float(plan_.scale);
    call.Int(plan_.nan_to_zero).Int(plan_.no_keys_to_zero);
    call.Int(plan_.q_head).Int(plan_.k_head).Int(plan_.v_head);
    in.AddStrides(&call);
    if (plan_.program) call.Int(plan_.no_pairs);
    run.AddTurns(&call, (rows / kCudaSumRows + in.all().sequences) * plan_.heads);
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
