#include "device/attention_inputs.h"

namespace pitc::cuda {

PairTests::PairTests(const DeviceRun& run, const AttentionPlan& plan,
                     const AttentionOperands<DeviceInput>& all)
    : sequences_(all.sequences) {
  const AttentionPlan::Inputs in = plan.Places();
  if (*plan.positions > 0) ReadLines(run, in.position_tests, *plan.positions);
  constexpr auto kNumbers = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
  if (*plan.tables > 0) {
    const DeviceInput of_q = run.Input(in.q_tables, "q_tables");
    const DeviceInput of_k = run.Input(in.k_tables, "k_tables");
    q_tables_ = Read(of_q, of_q.type == kNumbers, *plan.tables, &queries_, nullptr);
    k_tables_ = Read(of_k, of_k.type == kNumbers, *plan.tables, nullptr, &keys_);
  }
  const auto flags = [&](int place, const char* role, int64_t tests, int64_t* queries,
                         int64_t* keys) {
    if (tests == 0) return Part{};
    const DeviceInput read = run.MaskInput(place, role);
    return Read(read, ElementBytes(read.type) == 1, tests, queries, keys);
  };
  key_flags_ = flags(in.key_flags, "key_flags", *plan.key_tests, nullptr, &keys_);
  query_flags_ = flags(in.query_flags, "query_flags", *plan.query_tests, &queries_, nullptr);
  pair_flags_ = flags(in.pair_flags, "pair_flags", *plan.pair_tests, &queries_, &keys_);
  if (queries_ >= 0) CheckBelow(all.query_positions, all.q_heads.rows, queries_, "q_coords");
  if (keys_ >= 0) CheckBelow(all.key_positions, all.k_heads.rows, keys_, "k_coords");
}

void PairTests::ReadLines(const DeviceRun& run, int place, int64_t tests) {
  const DeviceInput t = run.Input(place, "position_tests");
  Expect(t.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 && t.shape.rank == 2 &&
             t.shape.dims[0] == tests && t.shape.dims[1] == 3,
         t, "as int64 [", tests, ", 3]");
  lines_ = {t, tests, 1};
}

// [tests, .., queries, keys] of so many sequences; an extent that is known is the same everywhere.
PairTests::Part PairTests::Read(const DeviceInput& t, bool is_type, int64_t tests, int64_t* queries,
                                int64_t* keys) {
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
  return {t, tests * sequences_, extents};
}

void PairTests::Bring(const DeviceRun& run) {
  for (Part* const part :
       {&lines_, &q_tables_, &k_tables_, &key_flags_, &query_flags_, &pair_flags_})
    if (part->extents > 0) part->data = run.OnDevice(part->input);
}

void PairTests::AddTo(KernelCall* call) const {
  if (lines_.extents > 0) call->Int64s(lines_.data, {lines_.rows, 3});
  if (q_tables_.extents > 0) {
    call->Int64s(q_tables_.data, {q_tables_.rows, queries_});
    call->Int64s(k_tables_.data, {k_tables_.rows, keys_});
  }
  if (key_flags_.extents > 0) call->Words(key_flags_.data, 1, {key_flags_.rows, keys_});
  if (query_flags_.extents > 0) call->Words(query_flags_.data, 1, {query_flags_.rows, queries_});
  if (pair_flags_.extents > 0)
    call->Words(pair_flags_.data, 1, {pair_flags_.rows, queries_, keys_});
}

AttentionInputs::AttentionInputs(const DeviceRun& run, const AttentionPlan& plan,
                                 Arena::Scope& scratch)
    : run_(run), plan_(plan), all_(ReadAttention(run, plan, scratch)) {
  const BiasExtents& bias = all_.bias_extents;
  if (bias.sequences != 1 && bias.sequences != all_.sequences)
    Fail("expected a bias for one sequence or all ", all_.sequences, ", got ", bias.sequences);
  if (plan.program) tests_.emplace(run, plan, all_);
}

void AttentionInputs::Bring() {
  const int64_t ends = all_.sequences + 1;
  at_.q = run_.OnDevice(all_.q);
  at_.k = run_.OnDevice(all_.k);
  at_.v = run_.OnDevice(all_.v);
  at_.q_offsets = run_.OnDevice(all_.q_offsets, ends);
  at_.k_offsets = run_.OnDevice(all_.k_offsets, ends);
  if (plan_.bias) at_.bias = run_.OnDevice(all_.bias);
  if (plan_.bias || plan_.program) {
    at_.query_positions = run_.OnDevice(all_.query_positions, all_.q_heads.rows);
    at_.key_positions = run_.OnDevice(all_.key_positions, all_.k_heads.rows);
  }
  if (tests_) tests_->Bring(run_);
}

void AttentionInputs::AddRows(KernelCall* call) const {
  const HeadExtents &q = all_.q_heads, &k = all_.k_heads, &v = all_.v_heads;
  call->Numbers(at_.q, plan_.dtype, {q.rows, q.heads, q.size});
  call->Numbers(at_.k, plan_.dtype, {k.rows, k.heads, k.size});
  call->Numbers(at_.v, plan_.dtype, {v.rows, v.heads, v.size});
}

void AttentionInputs::AddLists(KernelCall* call) const {
  const int64_t ends = all_.sequences + 1;
  call->Int32s(at_.q_offsets, {ends}).Int32s(at_.k_offsets, {ends});
  if (plan_.bias) call->Floats(at_.bias, {all_.bias_extents.elements});
  if (plan_.bias || plan_.program) {
    call->Int32s(at_.query_positions, {all_.q_heads.rows});
    call->Int32s(at_.key_positions, {all_.k_heads.rows});
  }
  if (tests_) tests_->AddTo(call);
}

void AttentionInputs::AddStrides(KernelCall* call) const {
  const BiasExtents& bias = all_.bias_extents;
  if (plan_.bias) call->Int(bias.sequence).Int(bias.head).Int(bias.query).Int(bias.key);
}

}  // namespace pitc::cuda
