// attention on a device: one launch for all sequences and heads.
#include "device/device_operation.h"
#include "ops/attention.h"

namespace pitc::cuda {
namespace {

// What tests of pairs look at: of tables and flags a row for each test and sequence.
class PairTests {
 public:
  template <class Operands>
  PairTests(const DeviceRun& run, const AttentionPlan& plan, const Operands& all)
      : run_(run), plan_(plan), sequences_(all.sequences) {
    const AttentionPlan::Inputs in = plan.Places();
    if (*plan.positions > 0) ReadLines(in.position_tests);
    constexpr auto kNumbers = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
    if (*plan.tables > 0) {
      q_tables_ = run.Input(in.q_tables, "q_tables");
      k_tables_ = run.Input(in.k_tables, "k_tables");
      Check(q_tables_, q_tables_.type == kNumbers, *plan.tables, &queries_, nullptr);
      Check(k_tables_, k_tables_.type == kNumbers, *plan.tables, nullptr, &keys_);
    }
    const auto flags = [&](int place, const char* role, int64_t tests, int64_t* queries,
                           int64_t* keys) {
      if (tests == 0) return DeviceInput{};
      const DeviceInput read = run.MaskInput(place, role);
      Check(read, ElementBytes(read.type) == 1, tests, queries, keys);
      return read;
    };
    key_flags_ = flags(in.key_flags, "key_flags", *plan.key_tests, nullptr, &keys_);
    query_flags_ = flags(in.query_flags, "query_flags", *plan.query_tests, &queries_, nullptr);
    pair_flags_ = flags(in.pair_flags, "pair_flags", *plan.pair_tests, &queries_, &keys_);
    if (queries_ >= 0) CheckBelow(all.query_positions, all.q_heads.rows, queries_, "q_coords");
    if (keys_ >= 0) CheckBelow(all.key_positions, all.k_heads.rows, keys_, "k_coords");
  }

  // As the kernel takes them.
  void AddTo(KernelCall* call) const {
    if (*plan_.positions > 0) call->Int64s(run_.OnDevice(position_tests_), {*plan_.positions, 3});
    const auto rows = [this](const std::optional<int64_t>& tests) { return *tests * sequences_; };
    if (*plan_.tables > 0) {
      call->Int64s(run_.OnDevice(q_tables_), {rows(plan_.tables), queries_});
      call->Int64s(run_.OnDevice(k_tables_), {rows(plan_.tables), keys_});
    }
    if (*plan_.key_tests > 0)
      call->Words(run_.OnDevice(key_flags_), 1, {rows(plan_.key_tests), keys_});
    if (*plan_.query_tests > 0)
      call->Words(run_.OnDevice(query_flags_), 1, {rows(plan_.query_tests), queries_});
    if (*plan_.pair_tests > 0)
      call->Words(run_.OnDevice(pair_flags_), 1, {rows(plan_.pair_tests), queries_, keys_});
  }

 private:
  void ReadLines(int place) {
    position_tests_ = run_.Input(place, "position_tests");
    const DeviceInput& t = position_tests_;
    Expect(t.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 && t.shape.rank == 2 &&
               t.shape.dims[0] == *plan_.positions && t.shape.dims[1] == 3,
           t, "as int64 [", *plan_.positions, ", 3]");
  }

  // [tests, .., queries, keys] of so many sequences; an extent that is known is the same
  // everywhere.
  void Check(const Tensor& t, bool is_type, int64_t tests, int64_t* queries, int64_t* keys) const {
    const int extents = (queries ? 1 : 0) + (keys ? 1 : 0), lead = t.shape.rank - extents;
    Expect(
        is_type && lead >= 1 && t.shape.dims[0] == tests && t.shape.Elements(1, lead) == sequences_,
        t, "as ", extents == 2 || !is_type ? "flags" : "numbers", " of ", tests, " tests and ",
        sequences_, " sequences");
    int at = lead;
    for (int64_t* const extent : {queries, keys}) {
      if (!extent) continue;
      const int64_t given = Numbered(t.shape.dims[at++], t.role);
      Expect(*extent < 0 || *extent == given, t, "with extent ", *extent, " in dimension ", at - 1);
      *extent = given;
    }
  }

  const DeviceRun& run_;
  const AttentionPlan& plan_;
  const int64_t sequences_;
  int64_t queries_ = -1, keys_ = -1;  // positions; below 0: no table or flag has them
  DeviceInput position_tests_, q_tables_, k_tables_, key_flags_, query_flags_, pair_flags_;
};

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
    if (bias.sequences != 1 && bias.sequences != in.sequences)
      Fail("expected a bias for one sequence or all ", in.sequences, ", got ", bias.sequences);
    std::optional<PairTests> tests;
    if (plan_.program) tests.emplace(run, plan_, in);
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
    if (plan_.bias) call.Floats(run.OnDevice(in.bias), {bias.elements});
    if (plan_.bias || plan_.program) {
      call.Int32s(run.OnDevice(in.query_positions, q.rows), {q.rows});
      call.Int32s(run.OnDevice(in.key_positions, k.rows), {k.rows});
    }
    if (tests) tests->AddTo(&call);
    call.Numbers(out, plan_.dtype, {q.rows, plan_.heads, plan_.dv}).Float(plan_.scale);
    call.Int(plan_.nan_to_zero).Int(plan_.no_keys_to_zero);
    call.Int(plan_.q_head).Int(plan_.k_head).Int(plan_.v_head);
    if (plan_.bias) call.Int(bias.sequence).Int(bias.head).Int(bias.query).Int(bias.key);
    if (plan_.program) call.Int(plan_.no_pairs);
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
