#include "ops/contraction.h"

#include <algorithm>

#include "base/index.h"
#include "ops/sparse_operand.h"

namespace pitc {
namespace {

constexpr int64_t kTaskPanels = 4;
constexpr int64_t kSampledRows = 512;  // at least, and one in so many
constexpr int64_t kSampledShare = 16;
constexpr int64_t kRoundedRows = 32;  // by a task

}  // namespace

LeftRows Contraction::AsWords(const RunContext& run, const LeftRows& left,
                              Arena::Scope& scratch) const {
  const int64_t words = StepCount(left.k, 2);
  auto* const made = scratch.Array<uint16_t>(left.count * words * 2);
  const Blocks blocks{left.count, kRoundedRows};
  const bool parallel = left.count * left.k > kSerialScan;
  run.Each(blocks.Count(), parallel && run.Threads() > 1, [&](int64_t block) {
    for (int64_t i = blocks.Begin(block); i < blocks.End(block); ++i) {
      uint16_t* const to = made + i * words * 2;
      simd_.round(left.live, left.data + left.rows[i] * left.k, left.k, to);
      if (left.k % 2) to[left.k] = 0;
    }
  });
  return {reinterpret_cast<float*>(made), left.count, words,
          Identity(left.count, scratch),  left.count, Live::kWords};
}

void Contraction::RunLeft(const RunContext& run, const LeftRows& given, const uint64_t* bits,
                          const Panels& b, const Target& target) const {
  if (!kernels_.listed) return RunGatherGemm(run, kernels_.dense, given, b, target);
  if (given.count == 0) return;
  Arena::Scope scratch;
  const bool converts = b.rounded && !given.AreWords();
  const LeftRows left = converts ? AsWords(run, given, scratch) : given;
  const StoredMatrix a{left.data, left.rows, left.count, left.k, left.k};
  SparseOperand operand(run, simd_, OperandRows(simd_, a, left.live), bits,
                        std::max(kSampledRows, left.count / kSampledShare));
  Work work = operand.Unseen(b.count, kTaskPanels);
  work.dense_tasks = SplitGemm(left.count, b.k, b.count, b.width, work.threads, b.rounded).Count();
  const auto run_dense = [&] { RunGatherGemm(run, kernels_.dense, left, b, target); };
  if (!IsWorthALook(costs_, work, options_)) return run_dense();
  operand.Count(&work, scratch);
  Decision decision(costs_, work, options_);
  if (decision.variant() == Variant::kDense) {
    run_dense();
  } else {
    operand.Each(decision.variant(), work,
                 [&](const BlockLists& lists, int64_t first, int64_t begin, int64_t end) {
                   lists.Run(kernels_.listed, b, target.Part(first), begin, end);
                 });
  }
  decision.Done();
}

}  // namespace pitc
