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

bool Contraction::MaySkip(const RunContext& run, const LeftRows& left, const Panels& b,
                          int64_t parts) const {
  if (!LooksForZeros() || left.count == 0) return false;
  if (options_.trace || options_.variant) return true;  // each part decides, and tells
  Arena::Scope scratch;
  SparseOperand operand = OperandOf(run, left, nullptr);
  Work work = UnseenOf(operand, left, b);
  work.rows = std::max<int64_t>(work.rows / parts, 1);
  if (!IsWorthALook(costs_, work, options_)) return false;
  operand.Count(&work, scratch);
  work.counts.Scale(1, static_cast<double>(parts));
  return Select(costs_, work).variant != Variant::kDense;
}

SparseOperand Contraction::OperandOf(const RunContext& run, const LeftRows& left,
                                     const uint64_t* bits) const {
  const StoredMatrix a{left.data, left.rows, left.count, left.k, left.k};
  return SparseOperand(run, simd_, OperandRows(simd_, a, left.live), bits,
                       std::max(kSampledRows, left.count / kSampledShare));
}

Work Contraction::UnseenOf(const SparseOperand& operand, const LeftRows& left,
                           const Panels& b) const {
  Work work = operand.Unseen(b.count, kTaskPanels);
  work.dense_tasks = b.Split(left.count, kernels_.dense, work.threads).Count();
  return work;
}

void Contraction::RunLeft(const RunContext& run, const LeftRows& given, const uint64_t* bits,
                          const Panels& b, const Target& target) const {
  if (!kernels_.listed) return RunGatherGemm(run, kernels_.dense, given, b, target);
  if (given.count == 0) return;
  Arena::Scope scratch;
  const bool converts = b.rounded && !given.AreWords();
  const LeftRows left = converts ? AsWords(run, given, scratch) : given;
  SparseOperand operand = OperandOf(run, left, bits);
  Work work = UnseenOf(operand, left, b);
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
