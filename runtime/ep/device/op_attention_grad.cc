// attention_grad on a device: two launches for all sequences and heads. The first one gives the
// gradients of queries, and numbers of each row of weights; the second one, those of keys and
// values.
#include <limits>

#include "device/attention_inputs.h"
#include "device/device_operation.h"

namespace pitc::cuda {
namespace {

constexpr int64_t kNumbers = 4;  // of each query and head
constexpr double kNoFloor = -std::numeric_limits<double>::infinity();

class AttentionGrad final : public DeviceOperation {
 public:
  AttentionGrad(const AttentionGradPlan& plan, DeviceKernel queries, DeviceKernel keys)
      : plan_(plan),
        forward_(ForwardOf(plan)),
        queries_(std::move(queries)),
        keys_(std::move(keys)) {}
  int InputCount() const override { return plan_.Places().count; }
  int OutputCount() const override { return AttentionGradPlan::kOutputs; }

  void Run(const DeviceRun& run) const override {
    Arena::Scope scratch;
    AttentionInputs in(run, forward_, scratch);
    const int64_t queries = in.all().q_heads.rows, keys = in.all().k_heads.rows;
    const DeviceInput g = run.Input(plan_.Places().g, "g");
    const HeadExtents g_heads = CheckHeads(g, plan_.dtype, plan_.dv, 0, plan_.heads);
    if (g_heads.rows != queries) Fail("expected g of ", queries, " rows, as q, got ", g_heads.rows);
    const int64_t heads = plan_.heads, d = plan_.d, dv = plan_.dv;
    void* const dq = Result(run, 0, {queries, heads, d});
    void* const dk = Result(run, 1, {keys, heads, d});
    void* const of_v = Result(run, 2, {keys, heads, dv});
    if (queries == 0) {
      run.Zero(dk, Product({keys, heads, d}, "dk") * sizeof(float));
      run.Zero(of_v, Product({keys, heads, dv}, "dv") * sizeof(float));
      return;
    }
    in.Bring();
    const void* const by_result = run.OnDevice(g);
    const auto bytes = Product({queries, heads, kNumbers}, "numbers of rows") * sizeof(float);
    void* const numbers = run.Take(bytes);
    const auto begin = [&](KernelCall* call) {
      in.AddRows(call);
      call->Floats(by_result, {queries, g_heads.heads, dv});
      in.AddLists(call);
    };
    const auto launch = [&](KernelCall* call, int64_t rows, const DeviceKernel& kernel) {
      in.AddStrides(call);
      run.AddTurns(call, (rows / kCudaSumRows + in.all().sequences) * heads);
      run.Launch(kernel, *call);
    };
    KernelCall of_queries = run.Call();
    begin(&of_queries);
    of_queries.Floats(dq, {queries, heads, d}).Floats(numbers, {queries, heads, kNumbers});
    of_queries.Float(plan_.scale).Float(plan_.floor.value_or(kNoFloor));
    of_queries.Int(plan_.no_pairs == AttentionGradPlan::kZero);
    launch(&of_queries, queries, queries_);
    if (keys == 0) return;
    KernelCall of_keys = run.Call();
    begin(&of_keys);
    of_keys.Floats(dk, {keys, heads, d}).Floats(of_v, {keys, heads, dv});
    of_keys.Floats(numbers, {queries, heads, kNumbers}).Float(plan_.scale);
    launch(&of_keys, keys, keys_);
  }

 private:
  static void* Result(const DeviceRun& run, int number, const Shape& shape) {
    void* const memory = run.Output(number, shape, sizeof(float));
    ExpectAligned(memory, "a gradient");
    return memory;
  }

  const AttentionGradPlan plan_;
  const AttentionPlan forward_;
  const DeviceKernel queries_, keys_;
};

}  // namespace

std::unique_ptr<DeviceOperation> MakeAttentionGrad(const AttentionGradPlan& plan,
                                                   DeviceKernel queries, DeviceKernel keys) {
  return std::make_unique<AttentionGrad>(plan, std::move(queries), std::move(keys));
}

}  // namespace pitc::cuda
